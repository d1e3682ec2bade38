#include "quantize/magnitudes.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace braid {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffffu;
constexpr float kMaxCode = 127;
constexpr float kLeast = 0x1p-90f;

}  // namespace

void Magnitudes::add(std::span<const float> numbers) {
  for (const float x : numbers) {
    const uint32_t bits = std::bit_cast<uint32_t>(x) & kMagnitude;
    ++counts_[bits >> kShift];
    largest_bits_ = std::max(largest_bits_, bits);
  }
}

void Magnitudes::add(std::span<const BFloat16> numbers) {
  for (const BFloat16 x : numbers) {
    const uint32_t bits = (uint32_t{x.bits} << 16) & kMagnitude;
    ++counts_[bits >> kShift];
    largest_bits_ = std::max(largest_bits_, bits);
  }
}

void Magnitudes::add(const Magnitudes& other) {
  for (size_t bin = 0; bin < counts_.size(); ++bin) counts_[bin] += other.counts_[bin];
  largest_bits_ = std::max(largest_bits_, other.largest_bits_);
}

int64_t Magnitudes::count() const {
  int64_t sum = 0;
  for (const uint64_t count : counts_) sum += static_cast<int64_t>(count);
  return sum;
}

float Magnitudes::largest() const { return std::bit_cast<float>(largest_bits_); }

float Magnitudes::middle(size_t bin) const {
  const auto bits = static_cast<uint32_t>((bin << kShift) + (size_t{1} << (kShift - 1)));
  return std::bit_cast<float>(std::min(bits, largest_bits_));
}

double ScaleFit::relative_error() const { return square > 0 ? std::sqrt(error / square) : 0; }

ScaleFit fit_of(const Magnitudes& magnitudes, float scale) {
  ScaleFit fit{.scale = scale, .largest = magnitudes.largest()};
  const std::span<const uint64_t> counts = magnitudes.counts();
  for (size_t bin = 0; bin < counts.size(); ++bin) {
    if (counts[bin] == 0) continue;
    const float x = magnitudes.middle(bin);
    const float code = std::nearbyint(x / scale);
    const double error = double{x} - double{scale} * double{std::min(code, kMaxCode)};
    const auto count = static_cast<double>(counts[bin]);
    fit.count += static_cast<int64_t>(counts[bin]);
    if (code > kMaxCode) fit.saturated += static_cast<int64_t>(counts[bin]);
    fit.error += count * error * error;
    fit.square += count * double{x} * double{x};
  }
  return fit;
}

float scale_by_range(const Magnitudes& magnitudes) {
  return magnitudes.largest() < kLeast ? 1 : magnitudes.largest() / kMaxCode;
}

}  // namespace braid

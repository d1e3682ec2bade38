#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/dtype.h"

namespace braid {

// How often magnitudes occurred: a bin for each 512th of an octave (the exponent and nine bits of
// the mantissa), so that a number in the middle of its bin is off by less than 2^-10 of itself.
class Magnitudes {
 public:
  static constexpr int kShift = 14;  // bits of a float32 that bins leave out
  static constexpr size_t kNumBins = size_t{1} << (31 - kShift);

  Magnitudes() : counts_(kNumBins) {}

  void add(std::span<const float> numbers);
  void add(std::span<const BFloat16> numbers);
  void add(const Magnitudes& other);

  int64_t count() const;
  // 0 without numbers; infinite or NaN if one of them is.
  float largest() const;
  std::span<const uint64_t> counts() const { return counts_; }
  // What stands for the numbers of a bin: its middle, or the largest of all if that is less.
  float middle(size_t bin) const;

 private:
  std::vector<uint64_t> counts_;
  uint32_t largest_bits_ = 0;
};

// What int8 codes, x / scale rounded and clamped to ±127, make of numbers.
struct ScaleFit {
  float scale = 1;
  float largest = 0;  // of the numbers
  int64_t count = 0;
  int64_t saturated = 0;         // codes that the clamp has changed
  double error = 0, square = 0;  // Σ (x − scale · code)², Σ x²

  double relative_error() const;
};
ScaleFit fit_of(const Magnitudes& magnitudes, float scale);

// The largest number's code is 127. 1 for numbers that are all below 2^-90.
float scale_by_range(const Magnitudes& magnitudes);

}  // namespace braid

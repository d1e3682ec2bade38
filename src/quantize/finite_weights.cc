#include "quantize/finite_weights.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/printable.h"
#include "quant/panels.h"

namespace braid {
namespace {

constexpr int64_t kGrainElements = 1 << 16;

bool all_finite(const std::vector<float>& values) {
  constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
  uint32_t greatest = 0;
  for (const float x : values)
    greatest = std::max(greatest, std::bit_cast<uint32_t>(x) & kMagnitude);
  return greatest < kInfinity;
}

bool all_finite(const Weight& weight, ThreadPool& pool) {
  const int64_t cols = weight.cols(), rows = weight.shape.num_elements() / cols;
  std::atomic<bool> finite = true;
  const int64_t grain = std::max<int64_t>(kGrainElements / cols, 1);
  pool.parallel_for(rows, grain, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r = begin; r < end; ++r) {
      expand_row(weight, r, row.data());
      if (!all_finite(row)) finite = false;
    }
  });
  return finite;
}

}  // namespace

void refuse_nonfinite(const WeightMap& weights, ThreadPool& pool) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : weights.tensors()) {
    const Weight& weight = tensor.weight;
    if (weight.format == nullptr || weight.shape.num_elements() == 0) continue;
    if (!all_finite(weight, pool)) names.push_back(printable(tensor.name));
  }
  if (names.empty()) return;
  throw Error("{}: NaN or infinite weights in {}", weights.origin(), join_some(names, ", ", 5));
}

}  // namespace braid

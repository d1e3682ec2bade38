#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "ops/logits/draw_math.h"

namespace braid {

// Passes over one row of logits, [vocab], written so that compilers make vector code of them.

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kScanBlock = 64;

// The largest of kScanBlock values; NaN is passed over, -inf if nothing is left.
inline float block_max(const float* values) {
  constexpr int kLanes = 16;
  float lanes[kLanes];
  for (int j = 0; j < kLanes; ++j) lanes[j] = kMinusInfinity;
  for (int64_t i = 0; i < kScanBlock; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
  }
  float largest = kMinusInfinity;
  for (int j = 0; j < kLanes; ++j) largest = lanes[j] > largest ? lanes[j] : largest;
  return largest;
}

// Calls visit(index, value) for values above `threshold`, in order; visit may raise it. Blocks
// without such a value cost one block_max.
template <typename Visit>
void for_each_above(std::span<const float> values, const float& threshold, const Visit& visit) {
  const int64_t size = static_cast<int64_t>(values.size());
  for (int64_t begin = 0; begin < size; begin += kScanBlock) {
    const int64_t end = begin + kScanBlock < size ? begin + kScanBlock : size;
    if (end - begin == kScanBlock && !(block_max(values.data() + begin) > threshold)) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (values[i] > threshold) visit(static_cast<int32_t>(i), values[i]);
    }
  }
}

// Index of the largest value, of equals the first; -1 if none is above -inf. NaN is passed over.
inline int32_t argmax(std::span<const float> values) {
  int32_t best = -1;
  float largest = kMinusInfinity;
  for_each_above(values, largest, [&](int32_t index, float value) {
    best = index;
    largest = value;
  });
  return best;
}

// Each as sanitised() makes it.
inline void sanitise(std::span<const float> from, float* to) {
  constexpr size_t kLanes = 16;
  size_t i = 0;
  for (; i + kLanes <= from.size(); i += kLanes) {
    float block[kLanes];
    for (size_t j = 0; j < kLanes; ++j) block[j] = sanitised(from[i + j]);
    for (size_t j = 0; j < kLanes; ++j) to[i + j] = block[j];
  }
  for (; i < from.size(); ++i) to[i] = sanitised(from[i]);
}

}  // namespace braid

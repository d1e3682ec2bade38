#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace braid {

// By how much Σ w x may move where a CUDA device gives inputs two digits with a scale for 128 of
// them (ops/linear/cuda/digits.cuh): each by 1 / 65024 of the largest, and float32's error of that.
inline double digit_error(const float* w, const double* x, int64_t cols) {
  constexpr int64_t kGroup = 128;
  double error = 0;
  for (int64_t first = 0; first < cols; first += kGroup) {
    double largest = 0, weights = 0;
    for (int64_t c = first; c < std::min(first + kGroup, cols); ++c) {
      largest = std::max(largest, std::fabs(x[c]));
      weights += std::fabs(w[c]);
    }
    error += largest * weights * (1.001 / 65024);
  }
  return error;
}

}  // namespace braid

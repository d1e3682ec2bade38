#pragma once

#include <cstdint>
#include <vector>

namespace braid::reference {

// Σ_j weight[j] · x[t − width + 1 + j] of one channel, x being zero before its start.
inline double causal_conv(const std::vector<float>& x, const float* weight, int64_t width,
                          int64_t t) {
  double sum = 0;
  for (int64_t j = 0; j < width; ++j) {
    const int64_t from = t - width + 1 + j;
    if (from >= 0) sum += double{weight[j]} * x[from];
  }
  return sum;
}

}  // namespace braid::reference

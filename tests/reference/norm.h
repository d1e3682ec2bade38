#pragma once

#include <cmath>
#include <cstdint>

namespace braid::reference {

// y = x · (mean(x²) + epsilon)^(−1/2) ⊙ weight; weight may be null.
inline void rms_norm(const float* x, const float* weight, double epsilon, int64_t width,
                     double* y) {
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += double{x[i]} * x[i];
  const double factor = 1 / std::sqrt(sum / static_cast<double>(width) + epsilon);
  for (int64_t i = 0; i < width; ++i) {
    y[i] = x[i] * factor * (weight != nullptr ? double{weight[i]} : 1);
  }
}

}  // namespace braid::reference

#pragma once

#include <cmath>
#include <cstdint>

namespace braid::reference {

// Rotates pairs (i, i + distance) of one head by the angle float32(position · frequency).
inline void rope(const float* x, int64_t head_dim, const float* frequencies, int64_t pairs,
                 int64_t distance, int32_t position, double* y) {
  for (int64_t i = 0; i < head_dim; ++i) y[i] = x[i];
  for (int64_t i = 0; i < pairs; ++i) {
    const float angle = static_cast<float>(position) * frequencies[i];
    const double c = std::cos(double{angle});
    const double s = std::sin(double{angle});
    y[i] = x[i] * c - x[i + distance] * s;
    y[i + distance] = x[i + distance] * c + x[i] * s;
  }
}

}  // namespace braid::reference

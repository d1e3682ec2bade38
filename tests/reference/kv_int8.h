#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace braid::reference {

// One token's key or value of one head as int8 (src/ops/attention/paged_kv.h), in the operations
// that the definition names, so that codes and scales are to agree to the bit.
struct Int8Row {
  std::vector<int8_t> codes;
  float scale = 0;

  float value(int64_t d) const { return static_cast<float>(codes[d]) * scale; }
};

inline Int8Row quantise_int8(const float* x, int64_t n) {
  Int8Row row{.codes = std::vector<int8_t>(n)};
  float largest = 0;
  for (int64_t d = 0; d < n; ++d) {
    if (!std::isfinite(x[d])) {
      row.scale = std::numeric_limits<float>::quiet_NaN();
      return row;
    }
    largest = std::max(largest, std::abs(x[d]));
  }
  if (largest < 0x1p-100f) return row;
  const float inverse = 127.0f / largest;
  row.scale = largest / 127.0f;
  for (int64_t d = 0; d < n; ++d)
    row.codes[d] = static_cast<int8_t>(std::nearbyint(x[d] * inverse));
  return row;
}

// The same with a scale that was chosen ahead.
inline Int8Row quantise_int8(const float* x, int64_t n, float scale) {
  Int8Row row{.codes = std::vector<int8_t>(n), .scale = scale};
  const float inverse = 1.0f / scale;
  for (int64_t d = 0; d < n; ++d) {
    if (!std::isfinite(x[d])) {
      std::fill(row.codes.begin(), row.codes.end(), int8_t{0});
      row.scale = std::numeric_limits<float>::quiet_NaN();
      return row;
    }
    row.codes[d] = static_cast<int8_t>(std::clamp(std::nearbyint(x[d] * inverse), -127.0f, 127.0f));
  }
  return row;
}

// Most by which a stored element differs from the given one.
inline double int8_error(const float* x, int64_t n) {
  double largest = 0;
  for (int64_t d = 0; d < n; ++d) largest = std::max(largest, std::abs(double{x[d]}));
  return std::max(largest / 254 * (1 + 0x1p-14), 0x1p-100);
}

// Likewise with a scale that was chosen ahead.
inline double int8_error(const float* x, int64_t n, float scale) {
  double largest = 0;
  for (int64_t d = 0; d < n; ++d) largest = std::max(largest, std::abs(double{x[d]}));
  return std::max(scale * 0.5 * (1 + 0x1p-15), largest - 127.0 * scale);
}

}  // namespace braid::reference

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "quantize/rounding.h"

namespace braid::reference {

// Xᵀ·X · 2 / n in double.  x: [n, cols].
inline std::vector<double> hessian(const std::vector<float>& x, int64_t cols) {
  const int64_t n = static_cast<int64_t>(x.size()) / cols;
  std::vector<double> h(static_cast<size_t>(cols * cols));
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t i = 0; i < cols; ++i) {
      for (int64_t j = 0; j < cols; ++j)
        h[i * cols + j] += double{x[t * cols + i]} * x[t * cols + j];
    }
  }
  for (double& value : h) value *= 2.0 / static_cast<double>(n);
  return h;
}

// The inverse of a positive definite matrix by elimination.
inline std::vector<double> inverse(std::vector<double> a, int64_t n) {
  std::vector<double> result(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) result[i * n + i] = 1;
  for (int64_t p = 0; p < n; ++p) {
    const double pivot = a[p * n + p];
    for (int64_t j = 0; j < n; ++j) {
      a[p * n + j] /= pivot;
      result[p * n + j] /= pivot;
    }
    for (int64_t i = 0; i < n; ++i) {
      if (i == p) continue;
      const double factor = a[i * n + p];
      for (int64_t j = 0; j < n; ++j) {
        a[i * n + j] -= factor * a[p * n + j];
        result[i * n + j] -= factor * result[p * n + j];
      }
    }
  }
  return result;
}

// The row whose products with the inputs x come closest to those of w with the inputs y, beside the
// damping's pull towards w: w + w·(C − H)·H'⁻¹, C = 2/n · Yᵀ·X. `inverse` is that of H'. x, y: [n,
// cols].
inline std::vector<double> aimed_row(const std::vector<double>& w, const std::vector<float>& x,
                                     const std::vector<float>& y,
                                     const std::vector<double>& inverse) {
  const auto cols = static_cast<int64_t>(w.size());
  const int64_t n = static_cast<int64_t>(x.size()) / cols;
  std::vector<double> slope(w.size()), result = w;
  for (int64_t t = 0; t < n; ++t) {
    double drift = 0;
    for (int64_t c = 0; c < cols; ++c) drift += w[c] * (double{y[t * cols + c]} - x[t * cols + c]);
    for (int64_t c = 0; c < cols; ++c) slope[c] += drift * x[t * cols + c] * 2.0 / n;
  }
  for (int64_t i = 0; i < cols; ++i) {
    for (int64_t j = 0; j < cols; ++j) result[j] += slope[i] * inverse[i * cols + j];
  }
  return result;
}

// One row rounded as GPTQ says, step by step in double: round the next column of `order`, move the
// loss to the others by the inverse Hessian, and strike the column from that inverse. `scales`: of
// the row's groups. Where a column comes within `doubt` steps of being rounded otherwise, both
// codes are right: `chosen`, by column, may say which of the two it is, and the rest follows from
// that.
struct GptqRow {
  std::vector<int> codes;  // by column
  int64_t doubtful = 0;    // columns
};
inline GptqRow gptq_row(const RoundingGrid& grid, std::vector<double> w,
                        const std::vector<GroupScale>& scales, std::vector<double> inverse,
                        const std::vector<int32_t>& order, std::span<const uint8_t> chosen,
                        double doubt) {
  const auto n = static_cast<int64_t>(w.size());
  GptqRow result{std::vector<int>(w.size())};
  for (const int32_t c : order) {
    const GroupScale& scale = scales[c / grid.group];
    int code = grid.zero == RoundingGrid::Zero::kMin ? 0 : scale.zero;
    if (scale.scale != 0) {
      const double steps = (w[c] - scale.min) / scale.scale + scale.zero;
      const auto code_of = [&](double at) {
        return static_cast<int>(
            std::clamp<double>(std::nearbyint(at), static_cast<double>(grid.low), grid.high));
      };
      code = code_of(steps);
      const int least = code_of(steps - doubt), greatest = code_of(steps + doubt);
      if (least != greatest) {
        ++result.doubtful;
        if (chosen[c] == least || chosen[c] == greatest) code = chosen[c];
      }
    }
    result.codes[c] = code;
    const double value = double{scale.scale} * (code - scale.zero) + scale.min;
    const double pivot = inverse[c * n + c];
    const double loss = (w[c] - value) / pivot;
    std::vector<double> row(inverse.begin() + c * n, inverse.begin() + (c + 1) * n);
    for (int64_t j = 0; j < n; ++j) w[j] -= loss * row[j];
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) inverse[i * n + j] -= row[i] * row[j] / pivot;
    }
  }
  return result;
}

}  // namespace braid::reference

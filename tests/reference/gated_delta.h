#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/elementwise.h"

namespace braid::reference {

inline double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// x / √(Σ x² + epsilon)
inline std::vector<double> l2_normalized(const float* x, int64_t n, double epsilon) {
  double sum = epsilon;
  for (int64_t i = 0; i < n; ++i) sum += double{x[i]} * x[i];
  std::vector<double> y(x, x + n);
  for (double& value : y) value /= std::sqrt(sum);
  return y;
}

// One token of the gated delta rule for one value head. state: [value_dim, key_dim]; key, query as
// they enter the rule; d, out: [value_dim].
inline void gated_delta_token(const std::vector<double>& key, const std::vector<double>& query,
                              const float* value, double beta, double g, std::vector<double>& state,
                              std::vector<double>& d, std::vector<double>& out) {
  const size_t key_dim = key.size();
  const size_t value_dim = state.size() / key_dim;
  d.resize(value_dim);
  out.resize(value_dim);
  for (size_t v = 0; v < value_dim; ++v) {
    double* row = state.data() + v * key_dim;
    double read = 0;
    for (size_t k = 0; k < key_dim; ++k) {
      row[k] *= std::exp(g);
      read += row[k] * key[k];
    }
    d[v] = beta * (value[v] - read);
    out[v] = 0;
    for (size_t k = 0; k < key_dim; ++k) {
      row[k] += key[k] * d[v];
      out[v] += row[k] * query[k];
    }
  }
}

}  // namespace braid::reference

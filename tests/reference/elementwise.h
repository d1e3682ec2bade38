#pragma once

#include <cmath>

namespace braid::reference {

inline double gelu_tanh(double x) {
  const double root_two_over_pi = std::sqrt(2 / std::acos(-1.0));
  return 0.5 * x * (1 + std::tanh(root_two_over_pi * (x + 0.044715 * x * x * x)));
}

inline double softcap(double x, double cap) { return cap * std::tanh(x / cap); }

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

inline double silu(double x) { return x / (1 + std::exp(-x)); }

}  // namespace braid::reference

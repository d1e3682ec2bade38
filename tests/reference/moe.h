#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace braid::reference {

struct Routing {
  std::vector<int32_t> experts;
  std::vector<double> weights;
};

// The k largest logits (ties: lower index; NaN last), weighted by a softmax over all experts that
// is renormalised over the chosen ones if `renormalise`; expert_scale may be null.
inline Routing route(const float* logits, int64_t num_experts, int64_t k, const float* expert_scale,
                     bool renormalise = true) {
  std::vector<int32_t> order(num_experts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (std::isnan(logits[a]) || std::isnan(logits[b])) {
      return !std::isnan(logits[a]) && std::isnan(logits[b]);
    }
    return logits[a] > logits[b];
  });
  double total = 0;
  const double largest = logits[order[0]];
  for (int64_t e = 0; e < num_experts; ++e) {
    if (!std::isnan(logits[e])) total += std::exp(logits[e] - largest);
  }
  Routing routing;
  double chosen = 0;
  for (int64_t i = 0; i < k; ++i) {
    routing.experts.push_back(order[i]);
    routing.weights.push_back(std::exp(logits[order[i]] - largest) / total);
    chosen += routing.weights.back();
  }
  for (int64_t i = 0; i < k; ++i) {
    if (renormalise) routing.weights[i] /= chosen;
    if (expert_scale != nullptr) routing.weights[i] *= expert_scale[routing.experts[i]];
  }
  return routing;
}

}  // namespace braid::reference

#pragma once

#include "layers/linear.h"
#include "tensor/tensor.h"

namespace braid {

// The routed experts of a layer: each token's top_k experts, a gated MLP (tanh GELU) each, summed
// with the router's weights. Gate and up matrices come stacked in one tensor or in two.
class MixtureOfExperts {
 public:
  struct Weights {
    Weight gate_up;       // [experts, 2·width, hidden], gate rows first; or empty:
    Weight gate;          // [experts, width, hidden]
    Weight up;            // [experts, width, hidden]
    Weight down;          // [experts, hidden, width]
    Tensor expert_scale;  // [experts], multiplies the router's weights
  };

  MixtureOfExperts() = default;
  MixtureOfExperts(Weights weights, int64_t top_k) : weights_(std::move(weights)), top_k_(top_k) {}

  // x: [tokens, hidden]; router_logits: [tokens, experts]; result: [tokens, hidden].
  TensorView run(StepContext& step, const TensorView& x, const TensorView& router_logits) const;

 private:
  Weights weights_;
  int64_t top_k_ = 0;
};

}  // namespace braid

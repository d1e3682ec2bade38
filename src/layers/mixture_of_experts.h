#pragma once

#include "layers/gated_mlp.h"
#include "layers/linear.h"
#include "ops/elementwise/elementwise.h"
#include "ops/fused/residual.h"
#include "ops/moe/moe.h"
#include "tensor/tensor.h"

namespace braid {

// The routed experts of a layer: each token's top_k experts, a gated MLP each, summed
// with the router's weights. Gate and up matrices come stacked in one tensor or in two.
class MixtureOfExperts {
 public:
  struct Weights {
    Weight gate_up;       // [experts, 2·width, hidden], gate rows first; or empty:
    Weight gate;          // [experts, width, hidden]
    Weight up;            // [experts, width, hidden]
    Weight down;          // [experts, hidden, width]
    Tensor expert_scale;  // [experts], multiplies the router's weights; or none
    std::string name;     // "layers.3.mlp.experts"; empty: unknown
  };

  MixtureOfExperts() = default;
  MixtureOfExperts(Activation activation, Weights weights, int64_t top_k,
                   RouterSoftmax softmax = RouterSoftmax::kChosen)
      : activation_(activation), weights_(std::move(weights)), top_k_(top_k), softmax_(softmax) {}

  // What the chosen experts make of each token, before they are combined.
  struct Outputs {
    TensorView rows;  // [tokens · top_k, hidden], sorted by expert; see gated_mlps() for its type
    ExpertGroups groups;
    TensorView experts, weights;  // [tokens, top_k]

    ExpertRows as_rows() const { return {rows, groups, experts, weights}; }
  };

  // A block that every token passes; its weights are read in one go with the experts'.
  struct Beside {
    const GatedMlp& mlp;
    const LinearInput& x;
    TensorView out;  // [tokens, hidden]
  };

  // What the experts are chosen by.
  struct Routing {
    const Linear& router;  // [experts, hidden]
    const LinearInput& x;  // [tokens, hidden]
  };

  // x: [tokens, hidden], of input_rounding().
  Outputs run_experts(StepContext& step, const LinearInput& x, const Routing& routing,
                      const Beside& beside) const;
  InputRounding input_rounding(const StepContext& step) const {
    return gated_input_rounding(step, {&weights_.gate_up, &weights_.gate, &weights_.up});
  }

  void place(Placement& placement) {
    Weights& w = weights_;
    placement.place(w.gate_up, w.gate, w.up, w.down, w.expert_scale);
  }

 private:
  void observe(StepContext& step, std::initializer_list<const char*> matrices, const LinearInput& x,
               const TensorView& offsets) const;

  Activation activation_ = Activation::kGeluTanh;
  Weights weights_;
  int64_t top_k_ = 0;
  RouterSoftmax softmax_ = RouterSoftmax::kChosen;
};

}  // namespace braid

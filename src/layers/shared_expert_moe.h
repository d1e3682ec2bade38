#pragma once

#include "layers/gated_mlp.h"
#include "layers/mixture_of_experts.h"
#include "ops/fused/residual.h"

namespace braid {

// Routed experts and one that every token passes, weighted by a gate of its own:
//   Σ routed + sigmoid(W_gate·x) · shared(x)
class SharedExpertMoe {
 public:
  SharedExpertMoe() = default;
  // router: [experts, hidden]; shared_gate: [1, hidden].
  SharedExpertMoe(Linear router, MixtureOfExperts experts, GatedMlp shared, Linear shared_gate)
      : router_(std::move(router)),
        experts_(std::move(experts)),
        shared_(std::move(shared)),
        shared_gate_(std::move(shared_gate)) {}

  // The same x, [tokens, hidden], as the input of each part.
  struct Inputs {
    LinearInput router, experts, shared, shared_gate;
  };
  // The precisions of those, in this order.
  std::array<InputRounding, 4> input_roundings(const StepContext& step) const;
  // Adds the result to `sum`, [tokens, hidden]; then inputs[i] is norms[i] of that, as add_branch()
  // makes it.
  void add_to(StepContext& step, const Inputs& x, const TensorView& sum,
              std::span<const InputNorm> norms, std::span<LinearInput> inputs) const;

  void place(Placement& placement) { placement.place(router_, experts_, shared_, shared_gate_); }

 private:
  Linear router_;
  MixtureOfExperts experts_;
  GatedMlp shared_;
  Linear shared_gate_;
};

}  // namespace braid

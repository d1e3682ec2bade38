#pragma once

#include "layers/activation.h"
#include "layers/linear.h"

namespace braid {

// W_down·(f(W_gate·x) ⊙ (W_up·x))
class GatedMlp {
 public:
  GatedMlp() = default;
  GatedMlp(Activation activation, Linear gate, Linear up, Linear down)
      : activation_(activation),
        gate_(std::move(gate)),
        up_(std::move(up)),
        down_(std::move(down)) {}

  // x: [tokens, hidden]; result: [tokens, hidden].
  TensorView run(StepContext& step, const TensorView& x) const;

  void place(Placement& placement) { placement.place(gate_, up_, down_); }

 private:
  Activation activation_ = Activation::kGeluTanh;
  Linear gate_;
  Linear up_;
  Linear down_;
};

}  // namespace braid

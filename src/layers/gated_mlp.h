#pragma once

#include "layers/linear.h"

namespace braid {

// W_down·(gelu(W_gate·x) ⊙ (W_up·x)), the tanh form of GELU.
class GatedMlp {
 public:
  GatedMlp() = default;
  GatedMlp(Linear gate, Linear up, Linear down)
      : gate_(std::move(gate)), up_(std::move(up)), down_(std::move(down)) {}

  // x: [tokens, hidden]; result: [tokens, hidden].
  TensorView run(StepContext& step, const TensorView& x) const;

 private:
  Linear gate_;
  Linear up_;
  Linear down_;
};

}  // namespace braid

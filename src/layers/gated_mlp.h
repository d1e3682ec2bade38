#pragma once

#include "layers/linear.h"
#include "layers/norm.h"
#include "ops/elementwise/elementwise.h"
#include "ops/fused/gated_mlps.h"

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

  // The same of norm(x).
  TensorView run(StepContext& step, const RmsNorm& norm, const TensorView& x) const;

  void place(Placement& placement) {
    placement.place_joined({&gate_.weight(), &up_.weight()});
    placement.place(down_);
  }

  // The same as a call that leaves it in `out`, for several at once.
  GatedMlpCall call(const LinearInput& input, const TensorView& out) const {
    return {activation_, &gate_.weight(), &up_.weight(), &down_.weight(), &input, nullptr, out};
  }
  void run(StepContext& step, const LinearInput& input, const TensorView& out) const;
  int64_t out_features() const { return down_.out_features(); }
  // Of the matrices that it begins with.
  int64_t first_bytes() const {
    return static_cast<int64_t>(gate_.weight().size_bytes() + up_.weight().size_bytes());
  }

  // The same of an input of this precision.
  TensorView run(StepContext& step, const LinearInput& input) const;
  InputRounding input_rounding(const StepContext& step) const {
    return gated_input_rounding(step, {&gate_.weight(), &up_.weight()});
  }

 private:
  Activation activation_ = Activation::kGeluTanh;
  Linear gate_;
  Linear up_;
  Linear down_;
};

}  // namespace braid

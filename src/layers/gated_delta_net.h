#pragma once

#include <optional>

#include "layers/linear.h"
#include "layers/norm.h"
#include "layers/placement.h"
#include "ops/gated_delta/gated_delta.h"
#include "tensor/tensor.h"

namespace braid {

// The token mixer of Gated DeltaNet layers: projections, a short causal convolution over q ‖ k ‖ v,
// the gated delta rule, a norm gated by z, the output projection. What it remembers lies in the
// layer's recurrent store.
class GatedDeltaNet {
 public:
  struct Dimensions {
    int64_t key_heads = 0;
    int64_t value_heads = 0;  // a multiple of key_heads
    int64_t key_dim = 0;
    int64_t value_dim = 0;
    int64_t conv_width = 0;

    int64_t key_width() const { return key_heads * key_dim; }
    int64_t value_width() const { return value_heads * value_dim; }
    int64_t conv_channels() const { return 2 * key_width() + value_width(); }
    bool operator==(const Dimensions&) const = default;
  };
  struct Weights {
    Linear qkv;          // [conv_channels, hidden]: all of q, then all of k, then all of v
    Linear z;            // [value_width, hidden]
    Linear b, a;         // [value_heads, hidden]
    Tensor conv;         // conv_channels rows of conv_width, the last one for the current token
    Tensor rate;         // [value_heads]: −exp(A_log)
    Tensor dt_bias;      // [value_heads]
    Tensor norm_weight;  // [value_dim], as it is multiplied
    Linear output;       // [hidden, value_width]
  };

  GatedDeltaNet() = default;
  GatedDeltaNet(const Dimensions& dimensions, ValueHeadOrder order, float norm_epsilon,
                Weights weights)
      : dimensions_(dimensions),
        order_(order),
        norm_epsilon_(norm_epsilon),
        weights_(std::move(weights)) {}

  // input: [tokens, hidden], of input_rounding(); result: [tokens, hidden].
  TensorView run(StepContext& step, int64_t layer, const LinearInput& input) const;
  InputRounding input_rounding(const StepContext& step) const {
    const Weights& w = weights_;
    return braid::input_rounding(step,
                                 {&w.qkv.weight(), &w.z.weight(), &w.b.weight(), &w.a.weight()});
  }

  void place(Placement& placement) {
    Weights& w = weights_;
    placement.place_joined({&w.qkv.weight(), &w.z.weight(), &w.b.weight(), &w.a.weight()});
    placement.place(w.conv, w.rate, w.dt_bias, w.norm_weight, w.output);
  }

 private:
  // All [tokens, rows of the matrix].
  struct Projected {
    TensorView raw, z, b, a;
  };
  // The convolution and the delta rule: [tokens, value_heads, value_dim].
  TensorView mix(StepContext& step, int64_t layer, const Projected& x) const;
  // The same with the products b and a, rounded, for steps of one token a sequence; nothing if the
  // device has no such pass.
  std::optional<LinearInput> mix_in_one_pass(StepContext& step, int64_t layer,
                                             const LinearInput& input, const TensorView& raw,
                                             const TensorView& z) const;

  Dimensions dimensions_;
  ValueHeadOrder order_ = ValueHeadOrder::kGrouped;
  float norm_epsilon_ = 1e-6f;
  Weights weights_;
};

}  // namespace braid

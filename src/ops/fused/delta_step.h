#pragma once

#include <optional>
#include <span>

#include "ops/gated_delta/gated_delta.h"
#include "ops/linear/linear.h"

namespace braid {

// What a Gated DeltaNet layer does between its projections, for steps of one token a sequence.
struct DeltaStepCall {
  TensorView raw;          // [tokens, channels]: q ‖ k ‖ v, all heads of each
  TensorView conv;         // [channels, width], as causal_conv_silu() takes it
  TensorView z;            // [tokens, value_heads · value_dim]
  const LinearInput& x;    // b = W_b·x and a = W_a·x
  const Weight& b_weight;  // [value_heads, cols]
  const Weight& a_weight;
  TensorView rate, dt_bias;  // [value_heads], as gated_delta() takes them
  TensorView norm;           // [value_dim]
  float norm_epsilon = 1e-6f;
  int64_t key_heads = 0, key_dim = 0, value_heads = 0, value_dim = 0;
  ValueHeadOrder order = ValueHeadOrder::kGrouped;
  float epsilon = 1e-6f;  // of the L2 norms of q and k
  // Of the result.
  InputRounding rounding;
};

// W_b and W_a, causal_conv_silu(), gated_delta(), gated_rms_norm() and prepare_linear_input() in
// one pass, where the device has that for these sequences, formats and sizes: the result is the
// input of the output projection, [tokens, value_heads · value_dim], and the slots are as those ops
// leave them. Nullopt: nothing was done, and the single ops are the way. Apart from the order of
// the sums of W_b and W_a the operations are the same.
std::optional<LinearInput> delta_step(Stream& stream, Workspace& workspace,
                                      const DeltaStepCall& call, const RecurrentLayer& layer,
                                      std::span<const RecurrentRows> sequences);

}  // namespace braid

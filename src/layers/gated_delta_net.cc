#include "layers/gated_delta_net.h"

#include <algorithm>

#include "ops/conv/causal_conv.h"
#include "ops/fused/delta_step.h"
#include "ops/fused/prepared_input.h"
#include "ops/norm/rms_norm.h"
#include "tensor/cuda/stream_state.h"

namespace braid {

TensorView GatedDeltaNet::run(StepContext& step, int64_t layer, const LinearInput& input) const {
  const Weights& w = weights_;
  const auto& sequences = step.layer_recurrent[layer].sequences;
  // A device may compute b and a on the way, but where their sums must not depend on whether it
  // can.
  const bool may_step = !step.stream.is_cpu() && !step.stream.cuda().deterministic() &&
                        step.product_observer == nullptr &&
                        std::all_of(sequences.begin(), sequences.end(),
                                    [](const RecurrentRows& rows) { return rows.num_rows == 1; });
  Projected x;
  if (may_step) {
    const auto [raw, z] = run_all(step, input, {&w.qkv, &w.z});
    const auto mixed = mix_in_one_pass(step, layer, input, raw, z);
    if (mixed) return w.output.run(step, *mixed);
    const auto [b, a] = run_all(step, input, {&w.b, &w.a});
    x = {raw, z, b, a};
  } else {
    const auto [raw, z, b, a] = run_all(step, input, {&w.qkv, &w.z, &w.b, &w.a});
    x = {raw, z, b, a};
  }
  const TensorView mixed = mix(step, layer, x);
  const TensorView z = x.z.reshape(mixed.shape());
  if (step.product_observer == nullptr) {
    return w.output.run(step, prepare_gated_norm_input(
                                  step.stream, step.workspace, mixed, z, w.norm_weight,
                                  norm_epsilon_, made_input_rounding(step, {&w.output.weight()})));
  }
  gated_rms_norm(step.stream, mixed, z, w.norm_weight, norm_epsilon_, mixed);
  return w.output.run(step, mixed.reshape({step.num_tokens(), dimensions_.value_width()}));
}

TensorView GatedDeltaNet::mix(StepContext& step, int64_t layer, const Projected& x) const {
  const Dimensions& d = dimensions_;
  const Weights& w = weights_;
  const int64_t tokens = step.num_tokens();
  const StepContext::LayerRecurrent& memory = step.layer_recurrent[layer];
  const Shape key_shape{tokens, d.key_heads, d.key_dim};
  const Shape value_shape{tokens, d.value_heads, d.value_dim};

  const TensorView mixed = step.workspace.take(DType::kF32, x.raw.shape());
  const TensorView kernel = w.conv.view().reshape({d.conv_channels(), d.conv_width});
  causal_conv_silu(step.stream, x.raw, kernel, memory.store, memory.sequences, mixed);

  const GatedDeltaInputs inputs{
      .q = mixed.columns(0, d.key_width()).reshape(key_shape),
      .k = mixed.columns(d.key_width(), d.key_width()).reshape(key_shape),
      .v = mixed.columns(2 * d.key_width(), d.value_width()).reshape(value_shape),
      .b = x.b,
      .a = x.a,
      .rate = w.rate,
      .dt_bias = w.dt_bias,
  };
  const TensorView out = step.workspace.take(DType::kF32, value_shape);
  gated_delta(step.stream, step.workspace, inputs, memory.store, memory.sequences,
              {.order = order_, .rounded = step.precision != ActivationPrecision::kF32}, out);
  return out;
}

std::optional<LinearInput> GatedDeltaNet::mix_in_one_pass(StepContext& step, int64_t layer,
                                                          const LinearInput& input,
                                                          const TensorView& raw,
                                                          const TensorView& z) const {
  const Dimensions& d = dimensions_;
  const Weights& w = weights_;
  const StepContext::LayerRecurrent& memory = step.layer_recurrent[layer];
  const DeltaStepCall call{.raw = raw,
                           .conv = w.conv.view().reshape({d.conv_channels(), d.conv_width}),
                           .z = z,
                           .x = input,
                           .b_weight = w.b.weight(),
                           .a_weight = w.a.weight(),
                           .rate = w.rate,
                           .dt_bias = w.dt_bias,
                           .norm = w.norm_weight,
                           .norm_epsilon = norm_epsilon_,
                           .key_heads = d.key_heads,
                           .key_dim = d.key_dim,
                           .value_heads = d.value_heads,
                           .value_dim = d.value_dim,
                           .order = order_,
                           .rounding = made_input_rounding(step, {&w.output.weight()})};
  return delta_step(step.stream, step.workspace, call, memory.store, memory.sequences);
}

}  // namespace braid

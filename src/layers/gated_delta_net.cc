#include "layers/gated_delta_net.h"

#include "ops/conv/causal_conv.h"
#include "ops/norm/rms_norm.h"
#include "tensor/profiler.h"

namespace braid {

TensorView GatedDeltaNet::run(StepContext& step, int64_t layer, const RmsNorm& norm,
                              const TensorView& x) const {
  const LayerScope scope(step.stream, "gdn");
  const Dimensions& d = dimensions_;
  const Weights& w = weights_;
  const int64_t tokens = step.num_tokens();
  const StepContext::LayerRecurrent& memory = step.layer_recurrent[layer];
  const Shape key_shape{tokens, d.key_heads, d.key_dim};
  const Shape value_shape{tokens, d.value_heads, d.value_dim};

  const LinearInput input =
      norm.prepare(step, x, {&w.qkv.weight(), &w.z.weight(), &w.b.weight(), &w.a.weight()});
  // raw: [tokens, conv_channels]
  const auto [raw, gate, b, a] = run_all(step, input, {&w.qkv, &w.z, &w.b, &w.a});
  const TensorView mixed = step.workspace.take(DType::kF32, raw.shape());
  const TensorView kernel = w.conv.view().reshape({d.conv_channels(), d.conv_width});
  causal_conv_silu(step.stream, raw, kernel, memory.store, memory.sequences, mixed);

  const GatedDeltaInputs inputs{
      .q = mixed.columns(0, d.key_width()).reshape(key_shape),
      .k = mixed.columns(d.key_width(), d.key_width()).reshape(key_shape),
      .v = mixed.columns(2 * d.key_width(), d.value_width()).reshape(value_shape),
      .b = b,
      .a = a,
      .rate = w.rate,
      .dt_bias = w.dt_bias,
  };
  const TensorView out = step.workspace.take(DType::kF32, value_shape);
  gated_delta(step.stream, step.workspace, inputs, memory.store, memory.sequences,
              {.order = order_, .rounded = step.precision != ActivationPrecision::kF32}, out);

  const TensorView z = gate.reshape(value_shape);
  gated_rms_norm(step.stream, out, z, w.norm_weight, norm_epsilon_, out);
  return w.output.run(step, out.reshape({tokens, d.value_width()}));
}

}  // namespace braid

#include "layers/gated_mlp.h"

#include "ops/fused/prepared_input.h"
#include "tensor/profiler.h"

namespace braid {

TensorView GatedMlp::run(StepContext& step, const TensorView& x) const {
  const LayerScope scope(step.stream, "mlp");
  return run(step, prepare_linear_input(step.stream, step.workspace, x, input_rounding(step)));
}

TensorView GatedMlp::run(StepContext& step, const RmsNorm& norm, const TensorView& x) const {
  const LayerScope scope(step.stream, "mlp");
  const InputNorm input = norm.as_input(input_rounding(step));
  return run(step, prepare_normed_input(step.stream, step.workspace, x, input.weight, input.epsilon,
                                        input.rounding));
}

TensorView GatedMlp::run(StepContext& step, const LinearInput& input) const {
  const TensorView out = step.workspace.take(DType::kF32, {input.x.dim(0), out_features()});
  run(step, input, out);
  return out;
}

void GatedMlp::run(StepContext& step, const LinearInput& input, const TensorView& out) const {
  const LayerScope scope(step.stream, "mlp");
  const GatedMlpCall calls[] = {call(input, out)};
  if (step.product_observer == nullptr && gated_mlps(step.stream, step.workspace, calls)) return;
  const auto [gate, up] = run_all(step, input, {&gate_, &up_});
  down_.run_to(step,
               prepare_gated_input(step.stream, step.workspace, activation_, gate, up,
                                   gated_input_rounding(step, {&down_.weight()})),
               out);
}

}  // namespace braid

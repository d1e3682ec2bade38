#include "layers/gated_mlp.h"

#include "tensor/profiler.h"

namespace braid {

TensorView GatedMlp::run(StepContext& step, const TensorView& x) const {
  const LayerScope scope(step.stream, "mlp");
  const LinearInput input = prepare_input(step, x, {&gate_.weight(), &up_.weight()});
  const TensorView gate = gate_.run(step, input);
  const TensorView up = up_.run(step, input);
  activate_and_multiply(step.stream, activation_, gate, up, gate);
  return down_.run(step, gate);
}

}  // namespace braid

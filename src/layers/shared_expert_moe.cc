#include "layers/shared_expert_moe.h"

#include "ops/elementwise/elementwise.h"
#include "tensor/profiler.h"

namespace braid {

TensorView SharedExpertMoe::run(StepContext& step, const TensorView& x) const {
  const LayerScope scope(step.stream, "moe");
  const TensorView out = experts_.run(step, x, router_.run(step, x));
  add_sigmoid_scaled(step.stream, out, shared_.run(step, x), shared_gate_.run(step, x));
  return out;
}

}  // namespace braid

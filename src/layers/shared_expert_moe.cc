#include "layers/shared_expert_moe.h"

#include "ops/elementwise/elementwise.h"
#include "tensor/profiler.h"

namespace braid {

std::array<InputRounding, 4> SharedExpertMoe::input_roundings(const StepContext& step) const {
  return {input_rounding(step, {&router_.weight()}), experts_.input_rounding(step),
          shared_.input_rounding(step), input_rounding(step, {&shared_gate_.weight()})};
}

TensorView SharedExpertMoe::run(StepContext& step, const Inputs& x) const {
  const LayerScope scope(step.stream, "moe");
  const TensorView router_logits = router_.run(step, x.router);
  const TensorView shared =
      step.workspace.take(DType::kF32, {router_logits.dim(0), shared_.out_features()});
  const TensorView out = experts_.run(step, x.experts, router_logits, {shared_, x.shared, shared});
  add_sigmoid_scaled(step.stream, out, shared, shared_gate_.run(step, x.shared_gate));
  return out;
}

}  // namespace braid

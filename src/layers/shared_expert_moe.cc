#include "layers/shared_expert_moe.h"

#include "tensor/profiler.h"

namespace braid {

std::array<InputRounding, 4> SharedExpertMoe::input_roundings(const StepContext& step) const {
  return {input_rounding(step, {&router_.weight()}), experts_.input_rounding(step),
          shared_.input_rounding(step), input_rounding(step, {&shared_gate_.weight()})};
}

void SharedExpertMoe::add_to(StepContext& step, const Inputs& x, const TensorView& sum,
                             std::span<const InputNorm> norms,
                             std::span<LinearInput> inputs) const {
  const LayerScope scope(step.stream, "moe");
  const TensorView shared = step.workspace.take(DType::kF32, sum.shape());
  const MixtureOfExperts::Outputs routed =
      experts_.run_experts(step, x.experts, {router_, x.router}, {shared_, x.shared, shared});
  shared_gate_.observe(step, x.shared_gate);
  add_experts(step.stream, step.workspace, routed.as_rows(),
              {shared, shared_gate_.weight(), x.shared_gate}, sum, norms, inputs);
}

}  // namespace braid

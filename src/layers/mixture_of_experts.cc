#include "layers/mixture_of_experts.h"

#include "ops/elementwise/elementwise.h"
#include "ops/fused/prepared_input.h"
#include "tensor/profiler.h"

namespace braid {

TensorView MixtureOfExperts::run(StepContext& step, const TensorView& x,
                                 const TensorView& router_logits) const {
  Stream& stream = step.stream;
  const LayerScope scope(stream, "moe");
  Workspace& workspace = step.workspace;
  const int64_t tokens = x.dim(0);
  const int64_t pairs = tokens * top_k_;
  const Weight& down = weights_.down;
  const int64_t width = down.cols();

  const TensorView experts = workspace.take(DType::kI32, {tokens, top_k_});
  const TensorView weights = workspace.take(DType::kF32, {tokens, top_k_});
  top_k_experts(stream, router_logits, weights_.expert_scale, experts, weights, softmax_);
  const ExpertGroups groups = group_by_expert(stream, workspace, experts, router_logits.dim(1));

  const TensorView sorted = workspace.take(DType::kF32, {pairs, x.dim(1)});
  gather_rows(stream, x, groups.tokens, sorted);
  TensorView gate, up;
  if (!weights_.gate_up.empty()) {
    const TensorView gate_up = workspace.take(DType::kF32, {pairs, 2 * width});
    grouped_linear(stream, weights_.gate_up, prepare_input(step, sorted, {&weights_.gate_up}),
                   groups.offsets, gate_up);
    gate = gate_up.columns(0, width);
    up = gate_up.columns(width, width);
  } else {
    const LinearInput input = prepare_input(step, sorted, {&weights_.gate, &weights_.up});
    gate = workspace.take(DType::kF32, {pairs, width});
    up = workspace.take(DType::kF32, {pairs, width});
    grouped_linear(stream, weights_.gate, input, groups.offsets, gate);
    grouped_linear(stream, weights_.up, input, groups.offsets, up);
  }
  const LinearInput activated =
      prepare_gated_input(stream, workspace, activation_, gate, up, input_precision(step, {&down}));
  const TensorView expert_out = workspace.take(DType::kF32, {pairs, down.rows()});
  grouped_linear(stream, down, activated, groups.offsets, expert_out);
  const TensorView out = workspace.take(DType::kF32, {tokens, down.rows()});
  combine_experts(stream, expert_out, groups, experts, weights, out);
  return out;
}

}  // namespace braid

#include "layers/mixture_of_experts.h"

#include "ops/fused/prepared_input.h"
#include "tensor/profiler.h"

namespace braid {

MixtureOfExperts::Outputs MixtureOfExperts::run_experts(StepContext& step, const LinearInput& x,
                                                        const Routing& routing,
                                                        const Beside& beside) const {
  Stream& stream = step.stream;
  const LayerScope scope(stream, "moe");
  Workspace& workspace = step.workspace;
  const int64_t tokens = routing.x.x.dim(0);
  const int64_t pairs = tokens * top_k_;
  const Weight& down = weights_.down;

  const TensorView router_logits =
      workspace.take(DType::kF32, {tokens, routing.router.out_features()});
  const bool early = routing.router.run_in_front(step, routing.x, router_logits,
                                                 beside.out.empty() ? 0 : beside.mlp.first_bytes());

  Outputs outputs;
  outputs.experts = workspace.take(DType::kI32, {tokens, top_k_});
  outputs.weights = workspace.take(DType::kF32, {tokens, top_k_});
  const Router router{router_logits, weights_.expert_scale, softmax_};
  const bool in_place = step.product_observer == nullptr && !beside.out.empty() &&
                        route_in_place(stream, workspace, router, outputs.experts, outputs.groups);
  if (!in_place) {
    outputs.groups = route_to_experts(stream, workspace, router_logits, weights_.expert_scale,
                                      outputs.experts, outputs.weights, softmax_);
  }
  outputs.rows = workspace.take(DType::kF32, {pairs, down.rows()});
  const bool joined = !weights_.gate_up.empty();
  GatedMlpCall calls[] = {beside.mlp.call(beside.x, beside.out),
                          {activation_, joined ? &weights_.gate_up : &weights_.gate, &weights_.up,
                           &down, &x, &outputs.groups, outputs.rows}};
  calls[0].early = early;
  const TensorView exact = outputs.rows;
  const TensorView rounded(exact.raw(), DType::kBF16, exact.shape(), exact.device());
  const auto in_one_pass = [&](size_t first) {
    if (step.product_observer != nullptr || stream.is_cpu()) return false;
    for (const TensorView& rows : {rounded, exact}) {
      calls[1].out = outputs.rows = rows;
      if (gated_mlps(stream, workspace, std::span(calls).subspan(first))) return true;
    }
    outputs.rows = exact;
    return false;
  };
  if (in_one_pass(0)) return outputs;
  finish_routing(stream, outputs.groups, outputs.experts, outputs.weights);
  beside.mlp.run(step, beside.x, beside.out);
  if (in_one_pass(1)) return outputs;
  const TensorView& offsets = outputs.groups.offsets;
  const LinearInput sorted = gather_input(stream, workspace, x, outputs.groups.tokens);
  const int64_t width = down.cols();
  if (step.product_observer != nullptr) {
    observe(step, {"gate_up_proj", "gate_proj", "up_proj"}, sorted, offsets);
  }
  TensorView gate, up;
  if (joined) {
    const TensorView gate_up = workspace.take(DType::kF32, {pairs, 2 * width});
    grouped_linear(stream, weights_.gate_up, sorted, offsets, gate_up);
    gate = gate_up.columns(0, width);
    up = gate_up.columns(width, width);
  } else {
    gate = workspace.take(DType::kF32, {pairs, width});
    up = workspace.take(DType::kF32, {pairs, width});
    grouped_linear(stream, weights_.gate, sorted, offsets, gate);
    grouped_linear(stream, weights_.up, sorted, offsets, up);
  }
  const LinearInput activated = prepare_gated_input(stream, workspace, activation_, gate, up,
                                                    gated_input_rounding(step, {&down}));
  if (step.product_observer != nullptr) {
    observe(step, {"down_proj"}, activated, offsets);
  }
  grouped_linear(stream, down, activated, offsets, outputs.rows);
  return outputs;
}

void MixtureOfExperts::observe(StepContext& step, std::initializer_list<const char*> matrices,
                               const LinearInput& x, const TensorView& offsets) const {
  std::vector<std::string> names;
  for (const char* matrix : matrices) names.push_back(weights_.name + "." + matrix);
  const std::vector<std::string_view> readers(names.begin(), names.end());
  step.product_observer->expert_input(readers, observed_input(x), offsets);
}

}  // namespace braid

#include "models/qwen3_next_layer.h"

#include <cmath>

#include "layers/attention.h"
#include "ops/fused/prepared_input.h"
#include "tensor/profiler.h"

namespace braid {

void Qwen3NextLayer::place(Placement& placement) {
  placement.place(input_norm_, post_attention_norm_);
  if (delta_net_) placement.place(*delta_net_);
  if (attention_) {
    Attention& a = *attention_;
    placement.place_joined({&a.q.weight(), &a.gate.weight(), &a.k.weight(), &a.v.weight()});
    placement.place(a.output, a.q_norm, a.k_norm);
  }
  if (experts_) placement.place(*experts_);
  if (mlp_) placement.place(*mlp_);
}

void Qwen3NextLayer::run(StepContext& step, int64_t index, const Rotary& rotary,
                         const Rotary::Tables& tables, Passing& passing) const {
  Workspace::Scope scope(step.workspace);
  const TensorView y = mix_tokens(step, index, rotary, tables, passing);
  feed_forward(step, {.y = y, .normed = false}, passing);
}

InputRounding Qwen3NextLayer::input_rounding(const StepContext& step) const {
  if (delta_net_) return delta_net_->input_rounding(step);
  const Attention& a = *attention_;
  return braid::input_rounding(step,
                               {&a.q.weight(), &a.gate.weight(), &a.k.weight(), &a.v.weight()});
}

TensorView Qwen3NextLayer::mix_tokens(StepContext& step, int64_t index, const Rotary& rotary,
                                      const Rotary::Tables& tables, const Passing& passing) const {
  const LayerScope scope(step.stream, delta_net_ ? "gdn" : "attention");
  const bool made = !passing.input.x.empty();
  const LinearInput input =
      made ? passing.input
           : prepare_normed_input(step.stream, step.workspace, passing.x, input_norm_.weight(),
                                  input_norm_.epsilon(), input_rounding(step));
  return delta_net_ ? delta_net_->run(step, index, input)
                    : attention_->run(step, index, rotary, tables, input);
}

// Adds the branch to x, the MLP or the experts of its norm, and passes the norm of that on.
void Qwen3NextLayer::feed_forward(StepContext& step, const ResidualBranch& mixed,
                                  Passing& passing) const {
  const TensorView& x = passing.x;
  const Qwen3NextLayer* next = passing.next;
  PassedInput made(next == nullptr ? std::nullopt
                                   : passing.passed.as_input(step, x, next->input_norm_,
                                                             next->input_rounding(step)));
  const auto as_input = [&](const InputRounding& rounding) {
    return post_attention_norm_.as_input(rounding);
  };
  if (!experts_) {
    const InputNorm norms[] = {as_input(mlp_->input_rounding(step))};
    LinearInput inputs[1];
    add_branch(step.stream, step.workspace, mixed, x, norms, inputs);
    add_branch(step.stream, step.workspace, {.y = mlp_->run(step, inputs[0]), .normed = false}, x,
               made.norms(), made.inputs());
  } else {
    const auto [router, experts, shared, shared_gate] = experts_->input_roundings(step);
    const InputNorm norms[] = {as_input(router), as_input(experts), as_input(shared),
                               as_input(shared_gate)};
    LinearInput inputs[4];
    add_branch(step.stream, step.workspace, mixed, x, norms, inputs);
    experts_->add_to(step, {inputs[0], inputs[1], inputs[2], inputs[3]}, x, made.norms(),
                     made.inputs());
  }
  passing.input = made.input();
}

// W_o·(attention(q, k, v) ⊙ sigmoid(W_gate·h)) of h, the input; q and k normed per head before
// they turn.
TensorView Qwen3NextLayer::Attention::run(StepContext& step, int64_t index, const Rotary& rotary,
                                          const Rotary::Tables& tables,
                                          const LinearInput& input) const {
  const int64_t tokens = step.num_tokens();
  const Shape kv_shape{tokens, num_kv_heads, head_dim};
  auto [queries, gates, keys, values] = run_all(step, input, {&q, &gate, &k, &v});
  queries = queries.reshape({tokens, num_heads, head_dim});
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  const TensorView out =
      attend_heads(step, index, {queries, keys.reshape(kv_shape), values.reshape(kv_shape)},
                   {q_norm, k_norm}, rotary, tables, {.scale = scale});
  return output.run(step,
                    prepare_sigmoid_gated_input(step.stream, step.workspace, gates, out,
                                                made_input_rounding(step, {&output.weight()})));
}

}  // namespace braid

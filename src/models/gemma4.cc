#include "models/gemma4.h"

#include <cmath>

#include "layers/attention.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

// The reference multiplies the embedding by √width held in the table's run-time type.
float embedding_scale(int64_t width, ActivationPrecision precision) {
  const float root = static_cast<float>(std::sqrt(static_cast<double>(width)));
  return precision == ActivationPrecision::kBF16 ? to_float(to_bfloat16(root)) : root;
}

float inverse_root(int64_t width) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(width)));
}

}  // namespace

CacheLayout Gemma4::cache_layout() const {
  CacheLayout layout;
  for (const Gemma4Config::Layer& layer : config_.layers) {
    if (layer.kv_donor) {
      layout.layers.push_back(SharesKvOf{*layer.kv_donor});
    } else if (layer.sliding) {
      layout.layers.push_back(WindowKv{layer.num_kv_heads, layer.head_dim, config_.sliding_window});
    } else {
      layout.layers.push_back(FullKv{layer.num_kv_heads, layer.head_dim});
    }
  }
  return layout;
}

LayerInfo Gemma4::layer_info(int64_t layer) const { return layers_[layer].info; }

void Gemma4::place(Placement& placement) {
  place_shared(placement);
  for (int64_t i = 0; i < num_layers(); ++i) {
    placement.begin_layer();
    place_layer(i, placement);
  }
  placement.end_layers();
}

void Gemma4::place_shared(Placement& placement) {
  placement.place(embedding_, head_, final_norm_, sliding_rope_, full_rope_, per_layer_embedding_,
                  per_layer_projection_, per_layer_norm_);
}

void Gemma4::place_layer(int64_t index, Placement& placement) {
  Layer& layer = layers_[index];
  Attention& attention = layer.attention;
  placement.place_joined({&attention.q.weight(), &attention.k.weight(), &attention.v.weight()});
  placement.place(layer.input_norm, layer.post_attention_norm, layer.pre_mlp_norm,
                  layer.post_mlp_norm, layer.mlp, attention.output, attention.q_norm,
                  attention.k_norm, attention.v_norm);
  if (layer.moe) {
    Moe& moe = *layer.moe;
    placement.place(moe.post_mlp_norm, moe.pre_experts_norm, moe.post_experts_norm, moe.router_norm,
                    moe.router, moe.experts);
  }
  if (layer.per_layer_input) {
    PerLayerInput& injection = *layer.per_layer_input;
    placement.place(injection.gate, injection.projection, injection.post_norm);
  }
}

void Gemma4::rebind_layer(int64_t layer, const WeightMap& weights) {
  WeightBinder binder(weights);
  Layer bound = bind_layer(binder, layer);
  binder.finish();
  layers_[layer] = std::move(bound);
}

TensorView Gemma4::forward(StepContext& step) const {
  const TensorView x = step.layers != nullptr ? step.layers->x : embed(step);  // [tokens, hidden]
  if (step.observer != nullptr) step.observer->layer_output(-1, x);
  Shared shared;
  shared.sliding_rope = sliding_rope_.tables(step);
  shared.full_rope = full_rope_.tables(step);
  if (config_.per_layer_width > 0) {
    shared.per_layer_inputs = per_layer_inputs(step, step.layers != nullptr ? embed(step) : x);
  }
  const int64_t end = step.end_layer(num_layers());
  const PassedNorm passed(step, config_.per_layer_width > 0 ? 0 : config_.hidden_size);
  LinearInput input;
  for (int64_t i = step.first_layer(); i < end; ++i) {
    begin_layer(step, i);
    decoder_layer(step, i, shared, x, i + 1 < end ? passed : PassedNorm(), input);
    end_layer(step, i);
    if (step.observer != nullptr) step.observer->layer_output(i, x);
  }
  return step.layers != nullptr ? TensorView() : logits(step, x);
}

TensorView Gemma4::embed(StepContext& step) const {
  const LayerScope scope(step.stream, "embedding");
  TensorView x = step.workspace.take(DType::kF32, {step.num_tokens(), config_.hidden_size});
  embedding(step.stream, embedding_.weight(), step.token_ids,
            embedding_scale(config_.hidden_size, step.precision), x);
  return x;
}

// u = (rms(W·x · hidden^(−1/2)) + √P · table[token]) · 2^(−1/2), for all layers at once.
TensorView Gemma4::per_layer_inputs(StepContext& step, const TensorView& x) const {
  const LayerScope scope(step.stream, "embedding");
  const int64_t width = config_.per_layer_width;
  const int64_t tokens = step.num_tokens();
  const TensorView context = per_layer_projection_.run(step, x);  // [tokens, layers · width]
  scale(step.stream, context, inverse_root(config_.hidden_size));
  per_layer_norm_.run_in_place(step, context.reshape({tokens, num_layers(), width}));
  const TensorView token = step.workspace.take(DType::kF32, context.shape());
  embedding(step.stream, per_layer_embedding_.weight(), step.token_ids,
            embedding_scale(width, step.precision), token);
  add(step.stream, context, token);
  scale(step.stream, context, inverse_root(2));
  return context;
}

// x: [tokens, hidden], updated in place. input: of this layer, if the one before has made it; then
// of the next one.
void Gemma4::decoder_layer(StepContext& step, int64_t index, const Shared& shared,
                           const TensorView& x, const PassedNorm& passed,
                           LinearInput& input) const {
  Workspace::Scope scope(step.workspace);
  const Layer& layer = layers_[index];
  const ResidualBranch attended =
      layer.post_attention_norm.on_branch(attend_block(step, index, shared, x, input));
  std::optional<InputNorm> end;
  if (passed) {
    const Layer& next = layers_[index + 1];
    const Attention& reader = next.attention;
    end = passed.as_input(
        step, x, next.input_norm,
        input_rounding(step, {&reader.q.weight(), &reader.k.weight(), &reader.v.weight()}));
  }
  PassedInput made(end);
  if (layer.moe) {
    add_mlp_and_experts(step, layer, attended, x, made);
  } else {
    const ResidualBranch branch =
        layer.post_mlp_norm.on_branch(dense_mlp(step, layer, attended, x), end_factor(layer));
    add_branch(step.stream, step.workspace, branch, x, made.norms(), made.inputs());
  }
  input = made.input();
  if (layer.per_layer_input) {
    const int64_t width = config_.per_layer_width;
    inject_per_layer_input(step, *layer.per_layer_input,
                           shared.per_layer_inputs.columns(index * width, width), x);
    scale(step.stream, x, layer.scalar);
  }
}

TensorView Gemma4::attend_block(StepContext& step, int64_t index, const Shared& shared,
                                const TensorView& x, const LinearInput& made) const {
  const LayerScope scope(step.stream, "attention");
  const Layer& layer = layers_[index];
  const Attention& attention = layer.attention;
  const Gemma4Config::Layer& shape = config_.layers[index];
  const int64_t tokens = step.num_tokens();

  const LinearInput input =
      !made.x.empty()
          ? made
          : layer.input_norm.prepare(
                step, x, {&attention.q.weight(), &attention.k.weight(), &attention.v.weight()});
  auto [q, k, v] = run_all(step, input, {&attention.q, &attention.k, &attention.v});
  q = q.reshape({tokens, config_.num_heads, shape.head_dim});
  if (!shape.kv_donor) {
    const Shape kv_shape{tokens, shape.num_kv_heads, shape.head_dim};
    k = k.reshape(kv_shape);
    // Without a projection of their own, values are the raw keys, before their norm and rotation.
    v = shape.values_from_keys ? k : v.reshape(kv_shape);
  }
  const AttentionOptions options{.scale = 1, .window = shape.sliding ? config_.sliding_window : 0};
  return attention.output.run(
      step, attend_input(
                step, index, {q, k, v}, {attention.q_norm, attention.k_norm, &attention.v_norm},
                shape.sliding ? sliding_rope_ : full_rope_,
                shape.sliding ? shared.sliding_rope : shared.full_rope, options, attention.output));
}

// Adds the branch to x, and passes the norm of that on; the others do the same.
TensorView Gemma4::dense_mlp(StepContext& step, const Layer& layer, const ResidualBranch& attended,
                             const TensorView& x) const {
  const InputNorm norms[] = {layer.pre_mlp_norm.as_input(layer.mlp.input_rounding(step))};
  LinearInput inputs[1];
  add_branch(step.stream, step.workspace, attended, x, norms, inputs);
  return layer.mlp.run(step, inputs[0]);
}

// Nothing lies between the layer's last sum and its factor, but for models with per-layer inputs.
float Gemma4::end_factor(const Layer& layer) { return layer.per_layer_input ? 1 : layer.scalar; }

// The dense branch and the experts side by side, each with its own post-norm.
void Gemma4::add_mlp_and_experts(StepContext& step, const Layer& layer,
                                 const ResidualBranch& attended, const TensorView& x,
                                 PassedInput& made) const {
  const LayerScope scope(step.stream, "moe");
  const Moe& moe = *layer.moe;
  const InputNorm norms[] = {layer.pre_mlp_norm.as_input(layer.mlp.input_rounding(step)),
                             moe.router_norm.as_input(input_rounding(step, {&moe.router.weight()})),
                             moe.pre_experts_norm.as_input(moe.experts.input_rounding(step))};
  LinearInput inputs[3];
  add_branch(step.stream, step.workspace, attended, x, norms, inputs);
  const TensorView dense = step.workspace.take(DType::kF32, x.shape());
  const MixtureOfExperts::Outputs routed = moe.experts.run_experts(
      step, inputs[2], {moe.router, inputs[1]}, {layer.mlp, inputs[0], dense});
  add_dense_and_experts(
      step.stream, step.workspace, routed.as_rows(),
      {moe.post_mlp_norm.weight(), moe.post_experts_norm.weight(), moe.post_mlp_norm.epsilon()},
      layer.post_mlp_norm.on_branch(dense, end_factor(layer)), x, made.norms(), made.inputs());
}

// x += rms(W_p·(gelu(W_g·x) ⊙ u))
void Gemma4::inject_per_layer_input(StepContext& step, const PerLayerInput& injection,
                                    const TensorView& u, const TensorView& x) const {
  const LayerScope scope(step.stream, "embedding");
  const TensorView gate = injection.gate.run(step, x);
  gelu_tanh_mul(step.stream, gate, u, gate);
  injection.post_norm.add_to(step, injection.projection.run(step, gate), x);
}

TensorView Gemma4::logits(StepContext& step, const TensorView& x) const {
  const LayerScope scope(step.stream, "head");
  const TensorView rows = step.workspace.take(
      DType::kF32, {static_cast<int64_t>(step.logits_rows.size()), config_.hidden_size});
  if (step.wants_hidden) {
    step.hidden = final_norm_.run(step, x);
    gather_rows(step.stream, step.hidden, step.logits_rows, rows);
  } else {
    gather_rows(step.stream, x, step.logits_rows, rows);
    final_norm_.run_in_place(step, rows);
  }
  const TensorView logits = head_.run(step, rows);
  if (config_.final_logit_softcap) softcap(step.stream, logits, *config_.final_logit_softcap);
  return logits;
}

}  // namespace braid

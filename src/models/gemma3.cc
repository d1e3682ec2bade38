#include "models/gemma3.h"

#include <fmt/format.h>

#include <cmath>

#include "layers/attention.h"
#include "models/gemma_names.h"
#include "models/layer_binder.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"
#include "tensor/profiler.h"

namespace braid {

Gemma3::Gemma3(Gemma3Config config, ModelFiles& files) : config_(std::move(config)) {
  WeightBinder binder(files.weights());
  const int64_t hidden = config_.hidden_size;
  embedding_ = Linear(binder.weight("embed_tokens.weight", {config_.vocab_size, hidden}));
  if (config_.tied_head) {
    head_ = embedding_;
    binder.ignore("lm_head.weight", "the head is tied to embed_tokens");
  } else {
    head_ = Linear(binder.weight("lm_head.weight", {config_.vocab_size, hidden}));
  }
  final_norm_ =
      RmsNorm(binder.f32("norm.weight", {hidden}, config_.norm_offset), config_.rms_norm_eps);
  const int64_t pairs = config_.head_dim / 2;
  sliding_rope_ = Rotary(config_.sliding_rope.frequencies(config_.head_dim), pairs);
  full_rope_ = Rotary(config_.full_rope.frequencies(config_.head_dim), pairs);
  for (int64_t i = 0; i < num_layers(); ++i) layers_.push_back(bind_layer(binder, i));
  ignore_gemma_towers(binder);
  load_report_ = binder.finish();
}

Gemma3::Layer Gemma3::bind_layer(WeightBinder& binder, int64_t index) const {
  const int64_t hidden = config_.hidden_size;
  const int64_t q_rows = config_.num_heads * config_.head_dim;
  const int64_t kv_rows = config_.num_kv_heads * config_.head_dim;
  Layer layer;
  LayerBinder bind(binder, fmt::format("layers.{}.", index),
                   {config_.rms_norm_eps, config_.norm_offset}, layer.info);
  layer.input_norm = bind.norm("input_layernorm", hidden);
  layer.post_attention_norm = bind.norm("post_attention_layernorm", hidden);
  layer.pre_mlp_norm = bind.norm("pre_feedforward_layernorm", hidden);
  layer.post_mlp_norm = bind.norm("post_feedforward_layernorm", hidden);
  layer.q = bind.linear("self_attn.q_proj", q_rows, hidden);
  layer.k = bind.linear("self_attn.k_proj", kv_rows, hidden);
  layer.v = bind.linear("self_attn.v_proj", kv_rows, hidden);
  layer.output = bind.linear("self_attn.o_proj", hidden, q_rows);
  layer.q_norm = bind.norm("self_attn.q_norm", config_.head_dim);
  layer.k_norm = bind.norm("self_attn.k_norm", config_.head_dim);
  layer.kv_scales = bind.kv_scales();
  layer.mlp = bind.gated_mlp("mlp", Activation::kGeluTanh, config_.mlp_width, hidden);
  layer.info.attention = fmt::format("{} {} x {}", config_.sliding[index] ? "sliding" : "full",
                                     config_.num_kv_heads, config_.head_dim);
  layer.info.feed_forward = fmt::format("dense {}", config_.mlp_width);
  return layer;
}

CacheLayout Gemma3::cache_layout() const {
  CacheLayout layout;
  for (const bool sliding : config_.sliding) {
    if (sliding) {
      layout.layers.push_back(
          WindowKv{config_.num_kv_heads, config_.head_dim, config_.sliding_window});
    } else {
      layout.layers.push_back(FullKv{config_.num_kv_heads, config_.head_dim});
    }
  }
  return layout;
}

TensorView Gemma3::embed(StepContext& step) const {
  const LayerScope scope(step.stream, "embedding");
  // The reference multiplies by √hidden held in the table's run-time type.
  float root = static_cast<float>(std::sqrt(static_cast<double>(config_.hidden_size)));
  if (step.precision == ActivationPrecision::kBF16) root = to_float(to_bfloat16(root));
  const TensorView x = step.workspace.take(DType::kF32, {step.num_tokens(), config_.hidden_size});
  embedding(step.stream, embedding_.weight(), step.token_ids, root, x);
  return x;
}

void Gemma3::place(Placement& placement) {
  place_shared(placement);
  for (int64_t i = 0; i < num_layers(); ++i) {
    placement.begin_layer();
    place_layer(i, placement);
  }
  placement.end_layers();
}

void Gemma3::place_shared(Placement& placement) {
  placement.place(embedding_, head_, final_norm_, sliding_rope_, full_rope_);
}

void Gemma3::place_layer(int64_t index, Placement& placement) {
  Layer& layer = layers_[index];
  placement.place(layer.input_norm, layer.post_attention_norm, layer.pre_mlp_norm,
                  layer.post_mlp_norm, layer.output, layer.q_norm, layer.k_norm, layer.mlp);
  placement.place_joined({&layer.q.weight(), &layer.k.weight(), &layer.v.weight()});
}

void Gemma3::rebind_layer(int64_t layer, const WeightMap& weights) {
  WeightBinder binder(weights);
  Layer bound = bind_layer(binder, layer);
  binder.finish();
  layers_[layer] = std::move(bound);
}

TensorView Gemma3::forward(StepContext& step) const {
  const TensorView x = step.layers != nullptr ? step.layers->x : embed(step);  // [tokens, hidden]
  if (step.observer != nullptr) step.observer->layer_output(-1, x);
  const Rotary::Tables sliding = sliding_rope_.tables(step);
  const Rotary::Tables full = full_rope_.tables(step);
  for (int64_t i = step.first_layer(); i < step.end_layer(num_layers()); ++i) {
    begin_layer(step, i);
    decoder_layer(step, i, config_.sliding[i] ? sliding : full, x);
    end_layer(step, i);
    if (step.observer != nullptr) step.observer->layer_output(i, x);
  }
  return step.layers != nullptr ? TensorView() : logits(step, x);
}

// x: [tokens, hidden], updated in place.
void Gemma3::decoder_layer(StepContext& step, int64_t index, const Rotary::Tables& tables,
                           const TensorView& x) const {
  Workspace::Scope scope(step.workspace);
  const Layer& layer = layers_[index];
  const InputNorm norms[] = {layer.pre_mlp_norm.as_input(layer.mlp.input_rounding(step))};
  LinearInput inputs[1];
  add_branch(step.stream, step.workspace,
             layer.post_attention_norm.on_branch(attend_block(step, index, tables, x)), x, norms,
             inputs);
  layer.post_mlp_norm.add_to(step, layer.mlp.run(step, inputs[0]), x);
}

TensorView Gemma3::attend_block(StepContext& step, int64_t index, const Rotary::Tables& tables,
                                const TensorView& x) const {
  const LayerScope scope(step.stream, "attention");
  const Layer& layer = layers_[index];
  const bool sliding = config_.sliding[index];
  const Rotary& rotary = sliding ? sliding_rope_ : full_rope_;
  const int64_t tokens = step.num_tokens();
  const Shape q_shape{tokens, config_.num_heads, config_.head_dim};
  const Shape kv_shape{tokens, config_.num_kv_heads, config_.head_dim};
  const LinearInput input =
      layer.input_norm.prepare(step, x, {&layer.q.weight(), &layer.k.weight(), &layer.v.weight()});
  auto [q, k, v] = run_all(step, input, {&layer.q, &layer.k, &layer.v});
  q = q.reshape(q_shape);
  const AttentionOptions options{.scale = config_.attention_scale,
                                 .window = sliding ? config_.sliding_window : 0};
  return layer.output.run(
      step, attend_input(step, index, {q, k.reshape(kv_shape), v.reshape(kv_shape)},
                         {layer.q_norm, layer.k_norm}, rotary, tables, options, layer.output));
}

TensorView Gemma3::logits(StepContext& step, const TensorView& x) const {
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

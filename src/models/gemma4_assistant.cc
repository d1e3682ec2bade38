#include "models/gemma4_assistant.h"

#include <fmt/format.h>

#include <numeric>

#include "base/error.h"
#include "layers/attention.h"
#include "models/layer_binder.h"
#include "ops/elementwise/elementwise.h"

namespace braid {
namespace {

struct KvShape {
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;
};

KvShape shape_of(const LayerCache& cache) {
  if (const auto* full = std::get_if<FullKv>(&cache)) return {full->num_kv_heads, full->head_dim};
  const auto& sliding = std::get<WindowKv>(cache);
  return {sliding.num_kv_heads, sliding.head_dim, sliding.window};
}

int64_t head_dim_of(const Gemma4Config& config, bool sliding) {
  for (const Gemma4Config::Layer& layer : config.layers) {
    if (layer.sliding == sliding) return layer.head_dim;
  }
  return 2;
}

}  // namespace

KvDonors find_kv_donors(const CacheLayout& backbone) {
  KvDonors donors;
  for (size_t i = 0; i < backbone.layers.size(); ++i) {
    const LayerCache& cache = backbone.layers[i];
    if (std::holds_alternative<WindowKv>(cache)) donors.sliding = static_cast<int64_t>(i);
    if (std::holds_alternative<FullKv>(cache)) donors.full = static_cast<int64_t>(i);
  }
  return donors;
}

Gemma4Assistant::Gemma4Assistant(Gemma4AssistantConfig config, ModelFiles& files,
                                 const Model& backbone)
    : config_(std::move(config)),
      backbone_(backbone),
      donors_(find_kv_donors(backbone.cache_layout())) {
  check_backbone(files.origin());
  const Gemma4Config& decoder = config_.decoder;
  const int64_t width = decoder.hidden_size;
  const int64_t outer = config_.backbone_hidden_size;

  WeightBinder binder(files.weights());
  pre_projection_ = Linear(binder.weight("pre_projection.weight", {width, 2 * outer}));
  post_projection_ = Linear(binder.weight("post_projection.weight", {outer, width}));
  final_norm_ = RmsNorm(binder.f32("norm.weight", {width}), decoder.rms_norm_eps);
  if (has_ordered_head()) {
    ordered_head_ =
        OrderedHead({decoder.vocab_size, width, config_.num_centroids, config_.top_k_centroids},
                    binder, files.origin());
  } else {
    head_ = Linear(binder.weight("embed_tokens.weight", {decoder.vocab_size, width}));
  }
  binder.ignore("lm_head.weight", "the head is tied to embed_tokens");

  const int64_t sliding_dim = head_dim_of(decoder, true);
  const int64_t full_dim = head_dim_of(decoder, false);
  sliding_rope_ = Rotary(decoder.sliding_rope.frequencies(sliding_dim), sliding_dim / 2);
  full_rope_ = Rotary(decoder.full_rope_frequencies(full_dim, binder), full_dim / 2);
  for (size_t i = 0; i < decoder.layers.size(); ++i) layers_.push_back(bind_layer(binder, i));
  load_report_ = binder.finish();
}

void Gemma4Assistant::check_backbone(const std::string& origin) const {
  const Gemma4Config& decoder = config_.decoder;
  const auto agree = [&](const char* what, int64_t own, int64_t backbones) {
    if (own == backbones) return;
    throw Error(
        "{}: this draft model is for another model: {} {}, but the model it is to draft for has {}",
        origin, what, own, backbones);
  };
  agree("backbone_hidden_size is", config_.backbone_hidden_size, backbone_.hidden_size());
  agree("vocab_size is", decoder.vocab_size, backbone_.vocab_size());
  const CacheLayout layout = backbone_.cache_layout();
  for (size_t i = 0; i < decoder.layers.size(); ++i) {
    const Gemma4Config::Layer& layer = decoder.layers[i];
    const char* kind = layer.sliding ? "sliding" : "full";
    const int64_t donor = donor_layer(static_cast<int64_t>(i));
    if (donor < 0) {
      throw Error(
          "{}: layer {} reads keys and values of a layer with {} attention, and the model it is to "
          "draft for has none",
          origin, i, kind);
    }
    const KvShape kv = shape_of(layout.layers[donor]);
    agree(layer.sliding ? "head_dim is" : "head_dim of full layers is", layer.head_dim,
          kv.head_dim);
    if (layer.sliding) agree("sliding_window is", decoder.sliding_window, kv.window);
    if (decoder.num_heads % kv.num_kv_heads != 0) {
      throw Error(
          "{}: num_attention_heads is {}, no multiple of the {} key-value heads of the {} layers "
          "of "
          "the model it is to draft for",
          origin, decoder.num_heads, kv.num_kv_heads, kind);
    }
  }
}

Gemma4Assistant::Layer Gemma4Assistant::bind_layer(WeightBinder& binder, int64_t index) const {
  const Gemma4Config& decoder = config_.decoder;
  const Gemma4Config::Layer& shape = decoder.layers[index];
  const int64_t width = decoder.hidden_size;
  const int64_t q_rows = decoder.num_heads * shape.head_dim;

  Layer layer;
  LayerBinder bind(binder, fmt::format("layers.{}.", index), {.epsilon = decoder.rms_norm_eps},
                   layer.info);
  layer.input_norm = bind.norm("input_layernorm", width);
  layer.post_attention_norm = bind.norm("post_attention_layernorm", width);
  layer.pre_mlp_norm = bind.norm("pre_feedforward_layernorm", width);
  layer.post_mlp_norm = bind.norm("post_feedforward_layernorm", width);
  layer.q = bind.linear("self_attn.q_proj", q_rows, width);
  layer.q_norm = bind.norm("self_attn.q_norm", shape.head_dim);
  layer.output = bind.linear("self_attn.o_proj", width, q_rows);
  for (const char* leftover :
       {"self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.k_norm.weight"}) {
    bind.ignore(leftover, "the layer borrows keys and values");
  }
  layer.mlp = bind.gated_mlp("mlp", Activation::kGeluTanh, shape.mlp_width, width);
  if (decoder.layer_scalars_required || bind.has("layer_scalar")) {
    layer.scalar = bind.scalar("layer_scalar");
  }
  layer.info.attention =
      fmt::format("{} {} x {}, KV of layer {} of the backbone", shape.sliding ? "sliding" : "full",
                  decoder.num_heads, shape.head_dim, donor_layer(index));
  layer.info.feed_forward = fmt::format("dense {}", shape.mlp_width);
  return layer;
}

CacheLayout Gemma4Assistant::cache_layout() const {
  return {std::vector<LayerCache>(layers_.size(), NoCache{})};
}

int64_t Gemma4Assistant::donor_layer(int64_t layer) const {
  return config_.decoder.layers[layer].sliding ? donors_.sliding : donors_.full;
}

int64_t Gemma4Assistant::shared_elements_per_token() const {
  const Gemma4Config& decoder = config_.decoder;
  int64_t widest_head = 0;
  for (const Gemma4Config::Layer& layer : decoder.layers) {
    widest_head = std::max<int64_t>(widest_head, layer.head_dim);
  }
  // The pair and what rounding makes of it, the embedding, what the step leaves; rotations of both
  // kinds of layers.
  int64_t elements = 7 * config_.backbone_hidden_size + 2 * decoder.hidden_size + 4 * widest_head;
  if (has_ordered_head()) {
    elements += decoder.vocab_size + config_.num_centroids +
                config_.top_k_centroids * (2 * decoder.hidden_size + 4);
  }
  return elements;
}

void Gemma4Assistant::place(Placement& placement) {
  placement.place(pre_projection_, post_projection_, final_norm_, sliding_rope_, full_rope_);
  if (has_ordered_head()) {
    // What top_k_experts() takes there.
    if (!placement.device().is_cpu() &&
        (config_.top_k_centroids > 32 || config_.num_centroids > 2048)) {
      throw Error(
          "an ordered head that chooses {} of {} groups: a CUDA device takes up to 32 of "
          "2048; use --device cpu or another drafter",
          config_.top_k_centroids, config_.num_centroids);
    }
    placement.place(ordered_head_);
  } else {
    placement.place(head_);
  }
  for (Layer& layer : layers_) {
    placement.place(layer.input_norm, layer.post_attention_norm, layer.pre_mlp_norm,
                    layer.post_mlp_norm, layer.q_norm, layer.q, layer.output, layer.mlp);
  }
}

TensorView Gemma4Assistant::forward(StepContext& step) const {
  const int64_t rows = step.num_tokens();
  const int64_t outer = config_.backbone_hidden_size;
  BRAID_CHECK((step.backbone_hidden.shape() == Shape{rows, outer}), "hidden states {} of {} rows",
              to_string(step.backbone_hidden.shape()), rows);

  // [embedding ‖ hidden state]
  const TensorView pair = step.workspace.take(DType::kF32, {rows, 2 * outer});
  std::vector<int32_t> all(rows);
  std::iota(all.begin(), all.end(), 0);
  gather_rows(step.stream, embed(step), all, pair.columns(0, outer));
  gather_rows(step.stream, step.backbone_hidden, all, pair.columns(outer, outer));
  const TensorView x = pre_projection_.run(step, pair);  // [rows, width]
  if (step.observer != nullptr) step.observer->layer_output(-1, x);

  const Rotary::Tables sliding = sliding_rope_.tables(step);
  const Rotary::Tables full = full_rope_.tables(step);
  for (int64_t i = 0; i < num_layers(); ++i) {
    decoder_layer(step, i, config_.decoder.layers[i].sliding ? sliding : full, x);
    if (step.observer != nullptr) step.observer->layer_output(i, x);
  }

  final_norm_.run_in_place(step, x);
  if (step.wants_hidden) step.hidden = post_projection_.run(step, x);
  const TensorView wanted = step.workspace.take(
      DType::kF32, {static_cast<int64_t>(step.logits_rows.size()), config_.decoder.hidden_size});
  gather_rows(step.stream, x, step.logits_rows, wanted);
  return has_ordered_head() ? ordered_head_.run(step, wanted) : head_.run(step, wanted);
}

void Gemma4Assistant::decoder_layer(StepContext& step, int64_t index, const Rotary::Tables& tables,
                                    const TensorView& x) const {
  Workspace::Scope scope(step.workspace);
  const Layer& layer = layers_[index];
  const Gemma4Config::Layer& shape = config_.decoder.layers[index];
  TensorView q = layer.q.run(step, layer.input_norm.run(step, x));
  q = q.reshape({step.num_tokens(), config_.decoder.num_heads, shape.head_dim});
  layer.q_norm.run_in_place(step, q);
  (shape.sliding ? sliding_rope_ : full_rope_).apply(step, tables, q);
  // The reference lets the newest row and a whole window before it be seen.
  const AttentionOptions options{.scale = 1,
                                 .window = shape.sliding ? config_.decoder.sliding_window + 1 : 0};
  const TensorView attended = layer.output.run(step, attend(step, index, q, options));
  layer.post_attention_norm.add_to(step, attended, x);
  const TensorView y = layer.mlp.run(step, layer.pre_mlp_norm.run(step, x));
  layer.post_mlp_norm.add_to(step, y, x);
  scale(step.stream, x, layer.scalar);
}

}  // namespace braid

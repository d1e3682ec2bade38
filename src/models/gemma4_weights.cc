#include <fmt/format.h>

#include <cmath>

#include "models/expert_stack.h"
#include "models/gemma4.h"
#include "models/gemma_names.h"
#include "models/layer_binder.h"

namespace braid {
namespace {

int64_t head_dim_of(const Gemma4Config& config, bool sliding) {
  for (const Gemma4Config::Layer& layer : config.layers) {
    if (layer.sliding == sliding) return layer.head_dim;
  }
  return 2;
}

}  // namespace

// Of a GGUF file: theta^(−2i / head_dim) over the factor stored for pair i. Pairs that the factors
// all but stop (1e30) do not turn; they are the last ones.
std::vector<float> Gemma4Config::full_rope_frequencies(int64_t head_dim,
                                                       WeightBinder& binder) const {
  std::vector<float> frequencies = full_rope.frequencies(head_dim);
  if (!rope_factors_in_file) return frequencies;
  const Tensor factors = binder.f32("rope_freqs.weight", {head_dim / 2});
  if (factors.view().empty()) return frequencies;
  constexpr float kStopped = 1e20f;
  size_t pairs = frequencies.size();
  const float* factor = factors.data<float>();
  while (pairs > 0 && factor[pairs - 1] >= kStopped) --pairs;
  frequencies.resize(pairs);
  for (size_t i = 0; i < pairs; ++i) frequencies[i] /= factor[i];
  return frequencies;
}

Gemma4::Gemma4(Gemma4Config config, ModelFiles& files) : config_(std::move(config)) {
  WeightBinder binder(files.weights());
  const int64_t hidden = config_.hidden_size;
  const float eps = config_.rms_norm_eps;

  embedding_ = Linear(binder.weight("embed_tokens.weight", {config_.vocab_size, hidden}));
  if (config_.tied_head) {
    head_ = embedding_;
    binder.ignore("lm_head.weight", "the head is tied to embed_tokens");
  } else {
    head_ = Linear(binder.weight("lm_head.weight", {config_.vocab_size, hidden}));
  }
  final_norm_ = RmsNorm(binder.f32("norm.weight", {hidden}), eps);

  const int64_t sliding_dim = head_dim_of(config_, true);
  const int64_t full_dim = head_dim_of(config_, false);
  sliding_rope_ = Rotary(config_.sliding_rope.frequencies(sliding_dim), sliding_dim / 2);
  full_rope_ = Rotary(config_.full_rope_frequencies(full_dim, binder), full_dim / 2);

  if (const int64_t width = config_.per_layer_width; width > 0) {
    const int64_t all = num_layers() * width;
    per_layer_embedding_ =
        Linear(binder.weight("embed_tokens_per_layer.weight", {config_.per_layer_vocab_size, all}));
    per_layer_projection_ =
        Linear(binder.weight("per_layer_model_projection.weight", {all, hidden}));
    per_layer_norm_ = RmsNorm(binder.f32("per_layer_projection_norm.weight", {width}), eps);
  }
  for (int64_t i = 0; i < num_layers(); ++i) layers_.push_back(bind_layer(binder, i));
  ignore_gemma_towers(binder);
  load_report_ = binder.finish();
}

Gemma4::Layer Gemma4::bind_layer(WeightBinder& binder, int64_t index) const {
  const Gemma4Config::Layer& shape = config_.layers[index];
  const int64_t hidden = config_.hidden_size;
  const float eps = config_.rms_norm_eps;
  const int64_t q_rows = config_.num_heads * shape.head_dim;
  const int64_t kv_rows = shape.num_kv_heads * shape.head_dim;

  Layer layer;
  LayerBinder bind(binder, fmt::format("layers.{}.", index), {.epsilon = eps}, layer.info);

  layer.input_norm = bind.norm("input_layernorm", hidden);
  layer.post_attention_norm = bind.norm("post_attention_layernorm", hidden);
  layer.pre_mlp_norm = bind.norm("pre_feedforward_layernorm", hidden);
  layer.post_mlp_norm = bind.norm("post_feedforward_layernorm", hidden);

  layer.info.attention = fmt::format("{} {} x {}", shape.sliding ? "sliding" : "full",
                                     shape.num_kv_heads, shape.head_dim);
  layer.attention.q = bind.linear("self_attn.q_proj", q_rows, hidden);
  layer.attention.q_norm = bind.norm("self_attn.q_norm", shape.head_dim);
  layer.attention.output = bind.linear("self_attn.o_proj", hidden, q_rows);
  layer.attention.v_norm = RmsNorm(eps);
  if (shape.kv_donor) {
    layer.info.attention += fmt::format(", KV of layer {}", *shape.kv_donor);
    for (const char* leftover :
         {"self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.k_norm.weight",
          "self_attn.k_scale", "self_attn.v_scale"}) {
      bind.ignore(leftover, "the layer borrows keys and values");
    }
  } else {
    layer.attention.k = bind.linear("self_attn.k_proj", kv_rows, hidden);
    layer.attention.k_norm = bind.norm("self_attn.k_norm", shape.head_dim);
    layer.kv_scales = bind.kv_scales();
    if (shape.values_from_keys) {
      layer.info.attention += ", K=V";
    } else {
      layer.attention.v = bind.linear("self_attn.v_proj", kv_rows, hidden);
    }
  }

  layer.info.feed_forward = fmt::format("dense {}", shape.mlp_width);
  layer.mlp = bind.gated_mlp("mlp", Activation::kGeluTanh, shape.mlp_width, hidden);
  if (config_.num_experts > 0) {
    layer.moe = std::make_unique<Moe>();
    layer.moe->post_mlp_norm = bind.norm("post_feedforward_layernorm_1", hidden);
    layer.moe->pre_experts_norm = bind.norm("pre_feedforward_layernorm_2", hidden);
    layer.moe->post_experts_norm = bind.norm("post_feedforward_layernorm_2", hidden);
    layer.moe->router = bind.linear("router.proj", config_.num_experts, hidden);
    bind_moe(bind, *layer.moe, layer.info);
  }
  if (const int64_t width = config_.per_layer_width; width > 0) {
    layer.per_layer_input = std::make_unique<PerLayerInput>();
    layer.per_layer_input->gate = bind.linear("per_layer_input_gate", width, hidden);
    layer.per_layer_input->projection = bind.linear("per_layer_projection", hidden, width);
    layer.per_layer_input->post_norm = bind.norm("post_per_layer_input_norm", hidden);
  }
  if (config_.layer_scalars_required || bind.has("layer_scalar")) {
    layer.scalar = bind.scalar("layer_scalar");
  }
  return layer;
}

void Gemma4::bind_moe(LayerBinder& bind, Moe& moe, LayerInfo& info) const {
  const int64_t hidden = config_.hidden_size;
  const int64_t experts = config_.num_experts;
  const int64_t width = config_.expert_width;

  Tensor router_scale = bind.vector("router.scale", {hidden});
  if (!router_scale.view().empty()) {
    const float factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(hidden)));
    for (float& s : router_scale.view().span<float>()) s *= factor;
  }
  moe.router_norm = RmsNorm(std::move(router_scale), config_.rms_norm_eps);

  const LayerBinder::Share active{config_.top_k_experts, experts};
  MixtureOfExperts::Weights weights;
  weights.name = bind.prefix() + "experts";
  if (bind.has("experts.0.gate_proj.weight")) {
    weights.gate = bind_expert_stack(bind, "experts", "gate_proj", {width, hidden}, active);
    weights.up = bind_expert_stack(bind, "experts", "up_proj", {width, hidden}, active);
    weights.down = bind_expert_stack(bind, "experts", "down_proj", {hidden, width}, active);
  } else {
    if (bind.has("experts.gate_proj")) {
      weights.gate = bind.weight("experts.gate_proj", {experts, width, hidden}, active);
      weights.up = bind.weight("experts.up_proj", {experts, width, hidden}, active);
    } else {
      weights.gate_up = bind.weight("experts.gate_up_proj", {experts, 2 * width, hidden}, active);
    }
    weights.down = bind.weight("experts.down_proj", {experts, hidden, width}, active);
  }
  weights.expert_scale = bind.vector("router.per_expert_scale", {experts});

  info.feed_forward +=
      fmt::format(" + {} of {} experts x {}", config_.top_k_experts, experts, width);
  moe.experts = MixtureOfExperts(Activation::kGeluTanh, std::move(weights), config_.top_k_experts);
}

}  // namespace braid

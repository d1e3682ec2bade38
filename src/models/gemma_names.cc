#include "models/gemma_names.h"

#include <fmt/format.h>

#include <array>

#include "models/tensor_names.h"

namespace braid {
namespace {

constexpr std::array kGlobalNames = {
    NamePair{"token_embd.weight", "embed_tokens.weight"},
    NamePair{"output_norm.weight", "norm.weight"},
    NamePair{"output.weight", "lm_head.weight"},
    NamePair{"per_layer_token_embd.weight", "embed_tokens_per_layer.weight"},
    NamePair{"per_layer_model_proj.weight", "per_layer_model_projection.weight"},
    NamePair{"per_layer_proj_norm.weight", "per_layer_projection_norm.weight"},
    NamePair{"nextn.pre_projection.weight", "pre_projection.weight"},
    NamePair{"nextn.post_projection.weight", "post_projection.weight"},
};

constexpr std::array kBlockNames = {
    NamePair{"attn_norm.weight", "input_layernorm.weight"},
    NamePair{"post_attention_norm.weight", "post_attention_layernorm.weight"},
    NamePair{"ffn_norm.weight", "pre_feedforward_layernorm.weight"},
    NamePair{"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
    NamePair{"attn_q.weight", "self_attn.q_proj.weight"},
    NamePair{"attn_k.weight", "self_attn.k_proj.weight"},
    NamePair{"attn_v.weight", "self_attn.v_proj.weight"},
    NamePair{"attn_output.weight", "self_attn.o_proj.weight"},
    NamePair{"attn_q_norm.weight", "self_attn.q_norm.weight"},
    NamePair{"attn_k_norm.weight", "self_attn.k_norm.weight"},
    NamePair{"ffn_gate.weight", "mlp.gate_proj.weight"},
    NamePair{"ffn_up.weight", "mlp.up_proj.weight"},
    NamePair{"ffn_down.weight", "mlp.down_proj.weight"},
    NamePair{"layer_output_scale.weight", "layer_scalar"},
    NamePair{"inp_gate.weight", "per_layer_input_gate.weight"},
    NamePair{"proj.weight", "per_layer_projection.weight"},
    NamePair{"post_norm.weight", "post_per_layer_input_norm.weight"},
    NamePair{"ffn_gate_inp.weight", "router.proj.weight"},
    NamePair{"ffn_gate_inp.scale", "router.scale"},
    NamePair{"ffn_gate_up_exps.weight", "experts.gate_up_proj"},
    NamePair{"ffn_gate_exps.weight", "experts.gate_proj"},
    NamePair{"ffn_up_exps.weight", "experts.up_proj"},
    NamePair{"ffn_down_exps.weight", "experts.down_proj"},
    NamePair{"ffn_down_exps.scale", "router.per_expert_scale"},
    NamePair{"post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"},
    NamePair{"pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"},
    NamePair{"post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"},
};

}  // namespace

void use_canonical_gemma_names(WeightMap& weights) { strip_decoder_prefixes(weights); }

void use_canonical_gemma_gguf_names(WeightMap& weights) {
  weights.rename([](std::string_view name) -> std::string {
    const auto block = parse_block_tensor(name);
    if (!block) return translate(name, kGlobalNames);
    const std::string canonical = translate(block->name, kBlockNames);
    return canonical.empty() ? canonical : fmt::format("layers.{}.{}", block->block, canonical);
  });
}

std::string gemma_gguf_name(std::string_view canonical) {
  const auto layer = parse_layer_tensor(canonical);
  if (!layer) return translate_back(canonical, kGlobalNames);
  const std::string name = translate_back(layer->name, kBlockNames);
  return name.empty() ? name : fmt::format("blk.{}.{}", layer->block, name);
}

std::span<const std::string_view> gemma_tower_prefixes() {
  static constexpr std::string_view kPrefixes[] = {"vision_tower.",    "audio_tower.",
                                                   "embed_vision.",    "embed_audio.",
                                                   "vision_embedder.", "multi_modal_projector."};
  return kPrefixes;
}

void ignore_gemma_towers(WeightBinder& binder) {
  for (const std::string_view prefix : gemma_tower_prefixes()) {
    binder.ignore_prefix(prefix, "text only");
  }
}

}  // namespace braid

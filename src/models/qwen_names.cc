#include "models/qwen_names.h"

#include <fmt/format.h>

#include <array>

#include "models/tensor_names.h"

namespace braid {
namespace {

constexpr std::array kGlobalNames = {
    NamePair{"token_embd.weight", "embed_tokens.weight"},
    NamePair{"output_norm.weight", "norm.weight"},
    NamePair{"output.weight", "lm_head.weight"},
};

constexpr std::array kBlockNames = {
    NamePair{"attn_norm.weight", "input_layernorm.weight"},
    NamePair{"post_attention_norm.weight", "post_attention_layernorm.weight"},
    NamePair{"attn_q.weight", "self_attn.q_proj.weight"},
    NamePair{"attn_k.weight", "self_attn.k_proj.weight"},
    NamePair{"attn_v.weight", "self_attn.v_proj.weight"},
    NamePair{"attn_output.weight", "self_attn.o_proj.weight"},
    NamePair{"attn_q_norm.weight", "self_attn.q_norm.weight"},
    NamePair{"attn_k_norm.weight", "self_attn.k_norm.weight"},
    NamePair{"attn_qkv.weight", "linear_attn.in_proj_qkv.weight"},
    NamePair{"attn_gate.weight", "linear_attn.in_proj_z.weight"},
    NamePair{"ssm_in.weight", "linear_attn.in_proj_qkvz.weight"},
    NamePair{"ssm_ba.weight", "linear_attn.in_proj_ba.weight"},
    NamePair{"ssm_beta.weight", "linear_attn.in_proj_b.weight"},
    NamePair{"ssm_alpha.weight", "linear_attn.in_proj_a.weight"},
    NamePair{"ssm_conv1d.weight", "linear_attn.conv1d.weight"},
    NamePair{"ssm_dt.bias", "linear_attn.dt_bias"},
    NamePair{"ssm_a", "linear_attn.decay_rate"},
    NamePair{"ssm_norm.weight", "linear_attn.norm.weight"},
    NamePair{"ssm_out.weight", "linear_attn.out_proj.weight"},
    NamePair{"ffn_gate.weight", "mlp.gate_proj.weight"},
    NamePair{"ffn_up.weight", "mlp.up_proj.weight"},
    NamePair{"ffn_down.weight", "mlp.down_proj.weight"},
    NamePair{"ffn_gate_inp.weight", "mlp.gate.weight"},
    NamePair{"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
    NamePair{"ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"},
    NamePair{"ffn_gate_exps.weight", "mlp.experts.gate_proj"},
    NamePair{"ffn_up_exps.weight", "mlp.experts.up_proj"},
    NamePair{"ffn_down_exps.weight", "mlp.experts.down_proj"},
    NamePair{"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    NamePair{"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    NamePair{"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
};

constexpr std::array kMtpNames = {
    NamePair{"nextn.eh_proj.weight", "fc.weight"},
    NamePair{"nextn.enorm.weight", "pre_fc_norm_embedding.weight"},
    NamePair{"nextn.hnorm.weight", "pre_fc_norm_hidden.weight"},
    NamePair{"nextn.shared_head_norm.weight", "norm.weight"},
    NamePair{"nextn.shared_head_head.weight", "lm_head.weight"},
    NamePair{"nextn.embed_tokens.weight", "embed_tokens.weight"},
};

}  // namespace

void use_canonical_qwen_names(WeightMap& weights) { strip_decoder_prefixes(weights); }

void use_canonical_qwen_gguf_names(WeightMap& weights, int64_t num_layers) {
  weights.rename([num_layers](std::string_view name) -> std::string {
    const auto block = parse_block_tensor(name);
    if (!block) return translate(name, kGlobalNames);
    if (block->block >= num_layers) {
      if (const std::string own = translate(block->name, kMtpNames); !own.empty()) {
        return "mtp." + own;
      }
    }
    const std::string canonical = translate(block->name, kBlockNames);
    if (canonical.empty()) return canonical;
    if (block->block < num_layers) return fmt::format("layers.{}.{}", block->block, canonical);
    return fmt::format("mtp.layers.{}.{}", block->block - num_layers, canonical);
  });
}

std::string qwen_gguf_name(std::string_view canonical, int64_t num_layers) {
  constexpr std::string_view kMtp = "mtp.";
  int64_t first_block = 0;
  if (canonical.starts_with(kMtp)) {
    canonical.remove_prefix(kMtp.size());
    if (const std::string own = translate_back(canonical, kMtpNames); !own.empty()) {
      return fmt::format("blk.{}.{}", num_layers, own);
    }
    first_block = num_layers;
  }
  const auto layer = parse_layer_tensor(canonical);
  if (!layer) return first_block > 0 ? std::string() : translate_back(canonical, kGlobalNames);
  const std::string name = translate_back(layer->name, kBlockNames);
  return name.empty() ? name : fmt::format("blk.{}.{}", first_block + layer->block, name);
}

std::span<const std::string_view> qwen_tower_prefixes() {
  static constexpr std::string_view kPrefixes[] = {"visual.", "vision_tower."};
  return kPrefixes;
}

void ignore_qwen_towers(WeightBinder& binder) {
  for (const std::string_view prefix : qwen_tower_prefixes()) {
    binder.ignore_prefix(prefix, "text only");
  }
}

}  // namespace braid

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/weight_map.h"

namespace braid {

// Gives every tensor of a Qwen3-Next or Qwen3.5 checkpoint its canonical name: that of the text
// decoder in Hugging Face files below the prefix ("layers.3.linear_attn.out_proj.weight"), and
// "mtp.…" for the head that predicts one token more.
void use_canonical_qwen_names(WeightMap& weights);

// Translates the names of GGUF files of architecture qwen3next, qwen35 or qwen35moe; unknown names
// stay as they are. The first `num_layers` blocks are the decoder's; the next one is the MTP
// head's. What has no counterpart in Hugging Face files: "linear_attn.decay_rate" holds
// −exp(A_log).
void use_canonical_qwen_gguf_names(WeightMap& weights, int64_t num_layers);
// The name in a GGUF file of a canonical one, or an empty string.
std::string qwen_gguf_name(std::string_view canonical, int64_t num_layers);

// How tensors of the vision tower begin.
std::span<const std::string_view> qwen_tower_prefixes();
// Marks the vision tower as not needed.
void ignore_qwen_towers(WeightBinder& binder);

}  // namespace braid

#pragma once

#include <span>
#include <string>
#include <string_view>

#include "checkpoint/weight_map.h"

namespace braid {

// Gives every tensor of a Gemma checkpoint its canonical name: that of the text decoder in Hugging
// Face files below the prefix ("layers.3.self_attn.q_proj.weight").

// Strips "model.language_model.", "language_model.model.", "model." and "language_model.".
void use_canonical_gemma_names(WeightMap& weights);
// Translates the names of GGUF files of architecture gemma3, gemma4 or gemma4-assistant; unknown
// names stay as they are.
void use_canonical_gemma_gguf_names(WeightMap& weights);
// The name in a GGUF file of a canonical one, or an empty string.
std::string gemma_gguf_name(std::string_view canonical);

// How tensors of vision and audio towers and their projections begin.
std::span<const std::string_view> gemma_tower_prefixes();
// Marks vision and audio towers and their projections as not needed.
void ignore_gemma_towers(WeightBinder& binder);

}  // namespace braid

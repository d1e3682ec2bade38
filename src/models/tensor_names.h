#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "checkpoint/weight_map.h"

namespace braid {

// What the families' canonical names have in common: those of the text decoder in Hugging Face
// files, without the prefix ("layers.3.self_attn.q_proj.weight").

// A GGUF name and the canonical one.
using NamePair = std::pair<std::string_view, std::string_view>;

// The canonical name, or an empty string.
std::string translate(std::string_view name, std::span<const NamePair> pairs);
// The GGUF name of a canonical one, or an empty string.
std::string translate_back(std::string_view name, std::span<const NamePair> pairs);

// "blk.3.attn_q.weight" of a GGUF file, taken apart.
struct BlockTensor {
  int64_t block = 0;
  std::string_view name;  // "attn_q.weight"
};
std::optional<BlockTensor> parse_block_tensor(std::string_view name);
// Likewise "layers.3.self_attn.q_proj.weight", a canonical name.
std::optional<BlockTensor> parse_layer_tensor(std::string_view name);

// Strips "model.language_model.", "language_model.model.", "model." and "language_model.".
void strip_decoder_prefixes(WeightMap& weights);

// Of one of a layer's experts that are stored one by one.
struct ExpertName {
  std::string_view stem;  // up to and with "experts."
  int64_t expert = 0;
  std::string_view rest;  // ".gate_proj.weight"
};
std::optional<ExpertName> expert_name(std::string_view tensor);

}  // namespace braid

#include "quantize/gguf_recipe.h"

#include <array>
#include <string>

namespace braid {
namespace {

// File types: llama_ftype of ggml-org/llama.cpp, include/llama.h.
constexpr std::array kSchemes = {
    GgufScheme{"q4_0", FormatId::kQ4_0, FormatId::kQ4_0, FormatId::kQ6K, 2},
    GgufScheme{"q4_1", FormatId::kQ4_1, FormatId::kQ4_1, FormatId::kQ6K, 3},
    GgufScheme{"q5_0", FormatId::kQ5_0, FormatId::kQ5_0, FormatId::kQ6K, 8},
    GgufScheme{"q5_1", FormatId::kQ5_1, FormatId::kQ5_1, FormatId::kQ6K, 9},
    GgufScheme{"q8_0", FormatId::kQ8_0, FormatId::kQ8_0, FormatId::kQ8_0, 7},
    GgufScheme{"iq4_nl", FormatId::kIq4Nl, FormatId::kIq4Nl, FormatId::kQ6K, 25},
    GgufScheme{"q4_k", FormatId::kQ4K, FormatId::kQ6K, FormatId::kQ6K, 15},
    GgufScheme{"q4_k_m", FormatId::kQ4K, FormatId::kQ6K, FormatId::kQ6K, 15},
    GgufScheme{"q4_k_s", FormatId::kQ4K, FormatId::kQ4K, FormatId::kQ6K, 14},
    GgufScheme{"q6_k", FormatId::kQ6K, FormatId::kQ6K, FormatId::kQ6K, 18},
    GgufScheme{"bf16", FormatId::kBF16, FormatId::kBF16, FormatId::kBF16, 32},
    GgufScheme{"f16", FormatId::kF16, FormatId::kF16, FormatId::kF16, 1},
    GgufScheme{"f32", FormatId::kF32, FormatId::kF32, FormatId::kF32, 0},
};

// The first and the last eighth of the layers, and of those between each third one: the rule of
// llama.cpp's mix Q4_K_M, by the layer's number.
bool in_sensitive_layer(int64_t layer, int64_t num_layers) {
  const int64_t eighth = num_layers / 8;
  return layer < eighth || layer >= 7 * num_layers / 8 || (layer - eighth) % 3 == 2;
}

bool is_sensitive(std::string_view name) {
  return name.find("v_proj") != name.npos || name.find("down_proj") != name.npos;
}

}  // namespace

const GgufScheme* find_gguf_scheme(std::string_view name) {
  for (const GgufScheme& scheme : kSchemes) {
    if (scheme.name == name) return &scheme;
  }
  return nullptr;
}

std::vector<std::string_view> gguf_scheme_names() {
  std::vector<std::string_view> names;
  for (const GgufScheme& scheme : kSchemes) names.push_back(scheme.name);
  return names;
}

const QuantFormat* gguf_format(const GgufScheme& scheme, const TensorPlan& matrix,
                               int64_t num_layers, bool tied_head) {
  const QuantFormat& base = quant_format(scheme.base);
  std::string_view name = matrix.name;
  ModuleKind kind = matrix.kind;
  if (kind == ModuleKind::kMtp) {
    name.remove_prefix(std::string_view("mtp.").size());
    kind = module_kind(name);
  }
  switch (kind) {
    case ModuleKind::kRouter:
      return nullptr;
    case ModuleKind::kGates:
      return base.plain() ? &base : nullptr;
    case ModuleKind::kHead:
      return &quant_format(scheme.head);
    case ModuleKind::kEmbedding:
      return tied_head && name == "embed_tokens.weight" ? &quant_format(scheme.head) : &base;
    default:
      break;
  }
  const auto layer = layer_of(name);
  if (layer && matrix.kind != ModuleKind::kMtp && is_sensitive(name) &&
      in_sensitive_layer(*layer, num_layers)) {
    return &quant_format(scheme.sensitive);
  }
  return &base;
}

const QuantFormat* gguf_format_for_width(const QuantFormat& format, int64_t cols) {
  if (cols % format.block_elements == 0) return &format;
  FormatId smaller;
  switch (format.id) {
    case FormatId::kQ4K:
      smaller = FormatId::kQ5_0;
      break;
    case FormatId::kQ6K:
      smaller = FormatId::kQ8_0;
      break;
    default:
      return nullptr;
  }
  const QuantFormat& other = quant_format(smaller);
  return cols % other.block_elements == 0 ? &other : nullptr;
}

}  // namespace braid

#include "quantize/module_kind.h"

#include <array>
#include <charconv>
#include <string>

namespace braid {
namespace {

constexpr std::array<std::string_view, kNumModuleKinds> kNames = {
    "attention", "deltanet",  "mlp",       "experts", "shared_expert", "router", "gates",
    "conv",      "per_layer", "embedding", "head",    "mtp",           "norm",   "other"};

bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// The number that begins `text`, which becomes the rest.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

}  // namespace

ModuleKind module_kind(std::string_view name) {
  if (name.starts_with("mtp.")) return ModuleKind::kMtp;
  if (name.starts_with("embed_tokens")) return ModuleKind::kEmbedding;
  if (name.starts_with("lm_head.")) return ModuleKind::kHead;
  if (has(name, "norm")) return ModuleKind::kNorm;
  if (name.starts_with("per_layer_")) return ModuleKind::kPerLayer;
  if (!layer_of(name)) return ModuleKind::kOther;
  if (has(name, ".per_layer_")) return ModuleKind::kPerLayer;
  if (has(name, ".router.") || has(name, ".mlp.gate.") || has(name, "shared_expert_gate")) {
    return ModuleKind::kRouter;
  }
  if (has(name, ".shared_expert.")) return ModuleKind::kSharedExpert;
  if (has(name, ".experts.")) return ModuleKind::kExperts;
  if (has(name, ".mlp.")) return ModuleKind::kMlp;
  if (has(name, "conv1d")) return ModuleKind::kConvolution;
  if (has(name, "in_proj_ba") || has(name, "in_proj_a.") || has(name, "in_proj_b.")) {
    return ModuleKind::kGates;
  }
  if (has(name, "linear_attn.") && has(name, "_proj")) return ModuleKind::kDeltaNet;
  if (has(name, "self_attn.") && has(name, "_proj")) return ModuleKind::kAttention;
  return ModuleKind::kNorm;
}

std::string_view module_kind_name(ModuleKind kind) { return kNames[static_cast<int>(kind)]; }

std::optional<ModuleKind> find_module_kind(std::string_view name) {
  for (int i = 0; i < kNumModuleKinds; ++i) {
    if (kNames[i] == name) return static_cast<ModuleKind>(i);
  }
  return std::nullopt;
}

std::optional<int64_t> layer_of(std::string_view tensor) {
  constexpr std::string_view kPrefix = "layers.";
  if (!tensor.starts_with(kPrefix)) return std::nullopt;
  tensor.remove_prefix(kPrefix.size());
  return take_number(tensor);
}

}  // namespace braid

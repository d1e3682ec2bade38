#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "models/tensor_names.h"

namespace braid {

// What a tensor is for, by its canonical name.
enum class ModuleKind : uint8_t {
  kAttention,  // self_attn.*_proj
  kDeltaNet,   // linear_attn.in_proj_qkv(z), in_proj_z, out_proj
  kMlp,        // the dense branch
  kExperts,
  kSharedExpert,
  kRouter,  // and the shared expert's gate
  kGates,   // in_proj_ba, in_proj_b, in_proj_a
  kConvolution,
  kPerLayer,   // per-layer inputs of Gemma's E models, their table apart
  kEmbedding,  // tables
  kHead,
  kMtp,
  kNorm,   // and other vectors
  kOther,  // not of the decoder
};
inline constexpr int kNumModuleKinds = static_cast<int>(ModuleKind::kOther) + 1;

ModuleKind module_kind(std::string_view tensor);
// As recipes name it: "attention", "shared_expert", ...
std::string_view module_kind_name(ModuleKind kind);
std::optional<ModuleKind> find_module_kind(std::string_view name);

// 3 for "layers.3.mlp.up_proj.weight"; none outside the decoder's layers.
std::optional<int64_t> layer_of(std::string_view tensor);

}  // namespace braid

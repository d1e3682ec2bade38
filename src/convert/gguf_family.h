#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/model_files.h"

namespace braid {

// The architecture that a Hugging Face folder's model has in GGUF files.
struct GgufFamily {
  enum class Kind : uint8_t { kGemma3, kGemma4, kQwen };
  Kind kind;
  std::string architecture;  // general.architecture
  bool tied_head = false;
};

// Throws Error for model types without GGUF files.
GgufFamily gguf_family(const ModelFiles& files);

}  // namespace braid

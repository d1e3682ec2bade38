#pragma once

#include <cstdint>

namespace braid {

// Entries of tokenizer.ggml.token_type.
struct GgufTokenType {
  enum : int32_t {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6,
  };
};

}  // namespace braid

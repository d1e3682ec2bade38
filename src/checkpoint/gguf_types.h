#pragma once

#include <cstdint>
#include <string_view>

#include "quant/quant_format.h"

namespace braid {

// A tensor type of GGUF files.
struct GgufType {
  uint32_t id;
  std::string_view name;
  int block_elements;
  int block_bytes;
  const QuantFormat* format;  // null: known, but no kernel reads it
};

// Null if braid does not know the id.
const GgufType* find_gguf_type(uint32_t id);

}  // namespace braid

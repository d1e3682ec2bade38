#pragma once

#include "base/check.h"
#include "quant/group_format.h"
#include "quant/schemes/schemes.h"

namespace braid {

// Fields of BlockW4 and BlockW4Asym.

inline void set_scale(BFloat16Bytes& to, float scale) {
  const uint16_t bits = to_bfloat16(scale).bits;
  to = {{static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)}};
}
void set_scale(Float32Bytes& to, float scale);
inline float to_float(BFloat16Bytes h) {
  return to_float(BFloat16{static_cast<uint16_t>(h.bytes[0] | h.bytes[1] << 8)});
}
float to_float(Float32Bytes f);

template <typename Block>
int code_of(const Block& block, int i) {
  const uint8_t byte = block.q[i / 32 * 16 + i % 16];
  return i % 32 < 16 ? byte & 15 : byte >> 4;
}

template <typename Block>
GroupHead head_of(const Block& block) {
  GroupHead head{.scale = to_float(block.scale)};
  if constexpr (Block::kAsymmetric) head.zero = block.zero;
  return head;
}

template <typename Block>
void pack_group(Block& block, GroupHead head, const uint8_t* codes) {
  set_scale(block.scale, head.scale);
  if constexpr (Block::kAsymmetric) {
    BRAID_CHECK(head.zero >= 0 && head.zero <= 16, "zero {}", head.zero);
    block.zero = static_cast<uint8_t>(head.zero);
    block.unused = 0;
  } else {
    BRAID_CHECK(head.zero == 8, "zero {} in a symmetric format", head.zero);
  }
  for (int part = 0; part < Block::kGroup / 32; ++part) {
    for (int j = 0; j < 16; ++j) {
      const int low = codes[32 * part + j], high = codes[32 * part + j + 16];
      block.q[16 * part + j] = static_cast<uint8_t>((low & 15) | (high & 15) << 4);
    }
  }
}

}  // namespace braid

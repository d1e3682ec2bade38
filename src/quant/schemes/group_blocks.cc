#include "quant/schemes/group_blocks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace braid {
namespace {

// Nearest integer, ties to even, kept within low … high.
int round_within(float x, int low, int high) {
  return static_cast<int>(
      std::nearbyint(std::clamp(x, static_cast<float>(low), static_cast<float>(high))));
}

// The scale that the block will hold.
template <typename Block>
float stored_scale(float scale) {
  typename Block::Scale stored;
  set_scale(stored, scale);
  return to_float(stored);
}

}  // namespace

void set_scale(Float32Bytes& to, float scale) { to = std::bit_cast<Float32Bytes>(scale); }
float to_float(Float32Bytes f) { return std::bit_cast<float>(f); }

template <typename Block>
void dequantize_w4(const void* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += Block::kGroup) {
    const auto& block = static_cast<const Block*>(in)[b];
    const GroupHead head = head_of(block);
    for (int i = 0; i < Block::kGroup; ++i) {
      out[i] = head.scale * static_cast<float>(code_of(block, i) - head.zero);
    }
  }
}

// As compressed-tensors rounds: a symmetric group's scale is its largest magnitude over 7.5; that
// of an asymmetric one spans its values and 0 in 15 steps. Codes are taken with the scale as
// stored: to nearest, ties to even. NaN becomes 0.
template <typename Block>
void quantize_w4(const float* in, int64_t blocks, void* out) {
  for (int64_t b = 0; b < blocks; ++b, in += Block::kGroup) {
    const auto [lowest, highest] = std::minmax_element(in, in + Block::kGroup);
    GroupHead head;
    if constexpr (Block::kAsymmetric) {
      const float low = std::min(*lowest, 0.0f), high = std::max(*highest, 0.0f);
      head.scale = stored_scale<Block>((high - low) / 15.0f);
      head.zero = head.scale != 0 ? round_within(-low / head.scale, 0, 15) : 0;
    } else {
      head.scale = stored_scale<Block>(std::max(std::fabs(*lowest), std::fabs(*highest)) / 7.5f);
    }
    uint8_t codes[Block::kGroup];
    for (int i = 0; i < Block::kGroup; ++i) {
      float steps = in[i] / head.scale;
      if (head.scale == 0 || std::isnan(steps)) steps = 0;
      codes[i] = static_cast<uint8_t>(round_within(steps + static_cast<float>(head.zero), 0, 15));
    }
    pack_group(static_cast<Block*>(out)[b], head, codes);
  }
}

#define BRAID_GROUP_BLOCK(...)                                            \
  template void dequantize_w4<__VA_ARGS__>(const void*, int64_t, float*); \
  template void quantize_w4<__VA_ARGS__>(const float*, int64_t, void*)
#define BRAID_GROUP_BLOCKS(group)                       \
  BRAID_GROUP_BLOCK(BlockW4<group, BFloat16Bytes>);     \
  BRAID_GROUP_BLOCK(BlockW4<group, Float32Bytes>);      \
  BRAID_GROUP_BLOCK(BlockW4Asym<group, BFloat16Bytes>); \
  BRAID_GROUP_BLOCK(BlockW4Asym<group, Float32Bytes>)
BRAID_GROUP_BLOCKS(32);
BRAID_GROUP_BLOCKS(64);
BRAID_GROUP_BLOCKS(128);

}  // namespace braid

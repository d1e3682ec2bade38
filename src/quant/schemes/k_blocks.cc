#include "quant/schemes/schemes.h"

namespace braid {
namespace {

// Scale and min of sub-block j: 6 bits each, the upper two of sub-blocks 4 to 7 kept in the top
// bits of the bytes of sub-blocks 0 to 3.
struct ScaleMin {
  int scale, min;
};
ScaleMin scale_min(const uint8_t (&packed)[12], int j) {
  if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
  return {(packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4, packed[j + 4] >> 4 | (packed[j] >> 6)
                                                                                     << 4};
}

// Scale of group i of a q3_k block, -32 … 31.
int q3_k_scale(const uint8_t (&packed)[12], int i) {
  const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
  return (low | (packed[8 + i % 4] >> (2 * (i / 4)) & 3) << 4) - 32;
}

}  // namespace

void dequantize_q2_k(const void* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += 256) {
    const auto& block = static_cast<const BlockQ2K*>(in)[b];
    const float d = to_float(block.d), dmin = to_float(block.dmin);
    for (int i = 0; i < 256; ++i) {
      const int q = block.q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
      const int scale = block.scales[i / 16];
      out[i] = d * (scale & 15) * q - dmin * (scale >> 4);
    }
  }
}

void dequantize_q3_k(const void* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += 256) {
    const auto& block = static_cast<const BlockQ3K*>(in)[b];
    const float d = to_float(block.d);
    for (int i = 0; i < 256; ++i) {
      const int low = block.q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
      const int high = block.high[i % 32] >> (i / 32) & 1;
      out[i] = d * q3_k_scale(block.scales, i / 16) * (low + 4 * high - 4);
    }
  }
}

void dequantize_q4_k(const void* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += 256) {
    const auto& block = static_cast<const BlockQ4K*>(in)[b];
    const float d = to_float(block.d), dmin = to_float(block.dmin);
    for (int i = 0; i < 256; ++i) {
      const ScaleMin sm = scale_min(block.scales, i / 32);
      const int q = block.q[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
      out[i] = d * sm.scale * q - dmin * sm.min;
    }
  }
}

void dequantize_q5_k(const void* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += 256) {
    const auto& block = static_cast<const BlockQ5K*>(in)[b];
    const float d = to_float(block.d), dmin = to_float(block.dmin);
    for (int i = 0; i < 256; ++i) {
      const ScaleMin sm = scale_min(block.scales, i / 32);
      const int low = block.q[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
      const int high = block.high[i % 32] >> (i / 32) & 1;
      out[i] = d * sm.scale * (low + 16 * high) - dmin * sm.min;
    }
  }
}

void dequantize_q6_k(const void* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += 256) {
    const auto& block = static_cast<const BlockQ6K*>(in)[b];
    const float d = to_float(block.d);
    for (int i = 0; i < 256; ++i) {
      const int part = i % 128 / 32;  // of a half: low bits in two nibble planes, high in one byte
      const int low = block.low[i / 128 * 64 + part % 2 * 32 + i % 32] >> (part / 2 * 4) & 15;
      const int high = block.high[i / 128 * 32 + i % 32] >> (part * 2) & 3;
      out[i] = d * block.scales[i / 16] * (low + 16 * high - 32);
    }
  }
}

}  // namespace braid

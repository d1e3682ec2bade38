#pragma once

#include <cstdint>

namespace braid {

// The GGUF block formats as they lie in files (ggml-org/llama.cpp, ggml/src/ggml-common.h). Scales
// are the bits of float16 numbers. Blocks start at any byte address: every member is made of bytes
// so that none needs alignment.
struct Half {
  uint8_t bytes[2];
};

// 32 values.
struct BlockQ8_0 {  // d · q
  Half d;
  int8_t q[32];
};
struct BlockQ4_0 {  // d · (q − 8); the low nibble of byte j is value j, the high one value j + 16
  Half d;
  uint8_t q[16];
};
struct BlockQ4_1 {  // d · q + m
  Half d, m;
  uint8_t q[16];
};
struct BlockQ5_0 {  // d · (q − 16); bit j of `high` is the fifth bit of value j
  Half d;
  uint8_t high[4];
  uint8_t q[16];
};
struct BlockQ5_1 {  // d · q + m
  Half d, m;
  uint8_t high[4];
  uint8_t q[16];
};
struct BlockIq4Nl {  // d · kIq4NlValues[q]
  Half d;
  uint8_t q[16];
};

// 256 values: eight sub-blocks of 32 or sixteen groups of 16 with their own small integer scales.
struct BlockQ2K {  // d · (s & 15) · q − dmin · (s >> 4), per 16
  uint8_t scales[16];
  uint8_t q[64];
  Half d, dmin;
};
struct BlockQ3K {  // d · (s − 32) · (q − 4), per 16; a set bit of `high` is worth 4
  uint8_t high[32];
  uint8_t q[64];
  uint8_t scales[12];  // sixteen of 6 bits
  Half d;
};
struct BlockQ4K {  // d · s · q − dmin · m, per 32
  Half d, dmin;
  uint8_t scales[12];  // eight s and eight m of 6 bits
  uint8_t q[128];
};
struct BlockQ5K {
  Half d, dmin;
  uint8_t scales[12];
  uint8_t high[32];
  uint8_t q[128];
};
struct BlockQ6K {  // d · s · (q − 32), per 16
  uint8_t low[128];
  uint8_t high[64];
  int8_t scales[16];
  Half d;
};

static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20);
static_assert(sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24 && sizeof(BlockIq4Nl) == 18);
static_assert(sizeof(BlockQ2K) == 84 && sizeof(BlockQ3K) == 110 && sizeof(BlockQ4K) == 144);
static_assert(sizeof(BlockQ5K) == 176 && sizeof(BlockQ6K) == 210);

// Formats of safetensors checkpoints, in a layout of our own.
struct BFloat16Bytes {
  uint8_t bytes[2];
};
struct Float32Bytes {
  uint8_t bytes[4];
};
// A group of 32, 64 or 128 values with a scale. Each 16 bytes of codes hold 32 values: the low
// nibble of byte j is value j, the high one value j + 16.
template <int group, typename Scale_>
struct BlockW4 {  // scale · (q − 8)
  using Scale = Scale_;
  static constexpr int kGroup = group;
  static constexpr bool kAsymmetric = false;
  Scale scale;
  uint8_t q[group / 2];
};
template <int group, typename Scale_>
struct BlockW4Asym {  // scale · (q − zero)
  using Scale = Scale_;
  static constexpr int kGroup = group;
  static constexpr bool kAsymmetric = true;
  uint8_t zero;    // 0 to 16
  uint8_t unused;  // 0
  Scale scale;
  uint8_t q[group / 2];
};

// A row of w8c: this, then one int8 for each value: scale · q. Rows are cut into blocks of
// kW8CBlock values only so that they have a width kernels like.
struct RowHeaderW8C {
  Float32Bytes scale;
  uint8_t code_sum[4];  // int32: the sum of the row's codes
};
inline constexpr int kW8CBlock = 32;

static_assert(sizeof(BlockW4<32, BFloat16Bytes>) == 18 && sizeof(BlockW4<32, Float32Bytes>) == 20);
static_assert(sizeof(BlockW4Asym<32, BFloat16Bytes>) == 20);
static_assert(sizeof(BlockW4Asym<32, Float32Bytes>) == 22 && sizeof(RowHeaderW8C) == 8);

// The sixteen levels of iq4_nl, in order.
inline constexpr int8_t kIq4NlValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                            1,    13,   25,  38,  53,  69,  89,  113};

}  // namespace braid

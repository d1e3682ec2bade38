#pragma once

// What the formats of quant/schemes/block_layouts.h mean, for a thread at a time. A thread takes
// eight weights of a row: of a unit of 32 columns, those 4 quad … 4 quad + 3 and the ones 16
// further on, for quad = 0 … 3. load() only reads, so that many can be under way; expand() gives
// the bits of dequantize(). Rows must start at even addresses (plain formats: at multiples of their
// element's size times 4).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "quant/quant_format.h"

namespace braid::cuda {

inline constexpr int kUnitColumns = 32;

__device__ __forceinline__ uint32_t read16(const uint8_t* p) {
  return __ldg(reinterpret_cast<const uint16_t*>(p));
}
// At an even address.
__device__ __forceinline__ uint32_t read32(const uint8_t* p) {
  return read16(p) | read16(p + 2) << 16;
}
__device__ __forceinline__ uint32_t read32_aligned(const uint8_t* p) {
  return __ldg(reinterpret_cast<const uint32_t*>(p));
}
__device__ __forceinline__ float half_bits(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
}
__device__ __forceinline__ float byte_of(uint32_t v, int i) {
  return static_cast<float>(v >> (8 * i) & 0xff);
}

template <FormatId>
struct Blocks;

template <>
struct Blocks<FormatId::kF32> {
  struct Raw {
    float4 low, high;
  };
  static __device__ Raw load(const uint8_t* row, int unit, int quad) {
    const float4* p = reinterpret_cast<const float4*>(row) + unit * 8 + quad;
    return {__ldg(p), __ldg(p + 4)};
  }
  static __device__ void expand(const Raw& raw, int, int, float (&v)[8]) {
    v[0] = raw.low.x, v[1] = raw.low.y, v[2] = raw.low.z, v[3] = raw.low.w;
    v[4] = raw.high.x, v[5] = raw.high.y, v[6] = raw.high.z, v[7] = raw.high.w;
  }
  static __device__ float element(const uint8_t* row, int64_t col) {
    return __ldg(reinterpret_cast<const float*>(row) + col);
  }
};

// The two 16-bit formats.
struct HalfWords {
  struct Raw {
    uint2 low, high;
  };
  static __device__ Raw load(const uint8_t* row, int unit, int quad) {
    const uint2* p = reinterpret_cast<const uint2*>(row) + unit * 8 + quad;
    return {__ldg(p), __ldg(p + 4)};
  }
  template <typename Convert>
  static __device__ void convert(const Raw& raw, const Convert& convert, float (&v)[8]) {
    const uint32_t words[4] = {raw.low.x, raw.low.y, raw.high.x, raw.high.y};
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = convert(words[i / 2] >> (i % 2 * 16) & 0xffff);
  }
};

template <>
struct Blocks<FormatId::kF16> : HalfWords {
  static __device__ void expand(const Raw& raw, int, int, float (&v)[8]) {
    convert(raw, half_bits, v);
  }
  static __device__ float element(const uint8_t* row, int64_t col) {
    return half_bits(read16(row + 2 * col));
  }
};

template <>
struct Blocks<FormatId::kBF16> : HalfWords {
  static __device__ void expand(const Raw& raw, int, int, float (&v)[8]) {
    convert(
        raw, [](uint32_t bits) { return __uint_as_float(bits << 16); }, v);
  }
  static __device__ float element(const uint8_t* row, int64_t col) {
    return __uint_as_float(read16(row + 2 * col) << 16);
  }
};

template <>
struct Blocks<FormatId::kQ8_0> {
  struct Raw {
    uint32_t low, high, scale;
  };
  static __device__ Raw load(const uint8_t* row, int unit, int quad) {
    const uint8_t* block = row + unit * 34;
    return {read32(block + 2 + 4 * quad), read32(block + 18 + 4 * quad), read16(block)};
  }
  static __device__ void expand(const Raw& raw, int, int, float (&v)[8]) {
    const float d = half_bits(raw.scale);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = d * static_cast<float>(static_cast<int8_t>(raw.low >> (8 * i)));
      v[4 + i] = d * static_cast<float>(static_cast<int8_t>(raw.high >> (8 * i)));
    }
  }
};

template <>
struct Blocks<FormatId::kQ4_0> {
  struct Raw {
    uint32_t codes, scale;
  };
  static __device__ Raw load(const uint8_t* row, int unit, int quad) {
    const uint8_t* block = row + unit * 18;
    return {read32(block + 2 + 4 * quad), read16(block)};
  }
  static __device__ void expand(const Raw& raw, int, int, float (&v)[8]) {
    const float d = half_bits(raw.scale);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = d * static_cast<float>(static_cast<int>(raw.codes >> (8 * i) & 15) - 8);
      v[4 + i] = d * static_cast<float>(static_cast<int>(raw.codes >> (8 * i + 4) & 15) - 8);
    }
  }
};

template <>
struct Blocks<FormatId::kQ4_1> {
  struct Raw {
    uint32_t codes, scale_min;
  };
  static __device__ Raw load(const uint8_t* row, int unit, int quad) {
    const uint8_t* block = row + unit * 20;
    return {read32_aligned(block + 4 + 4 * quad), read32_aligned(block)};
  }
  static __device__ void expand(const Raw& raw, int, int, float (&v)[8]) {
    const float d = half_bits(raw.scale_min), m = half_bits(raw.scale_min >> 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = __fadd_rn(__fmul_rn(d, static_cast<float>(raw.codes >> (8 * i) & 15)), m);
      v[4 + i] = __fadd_rn(__fmul_rn(d, static_cast<float>(raw.codes >> (8 * i + 4) & 15)), m);
    }
  }
};

// Code i of eight: four bits of `codes` and a fifth one.
__device__ __forceinline__ int five_bits(uint32_t codes, uint32_t fifths, int quad, int i) {
  const int j = 4 * quad + i % 4 + i / 4 * 16;
  return static_cast<int>((codes >> (8 * (i % 4) + 4 * (i / 4)) & 15) | (fifths >> j & 1) << 4);
}

template <>
struct Blocks<FormatId::kQ5_0> {
  struct Raw {
    uint32_t codes, fifths, scale;
  };
  static __device__ Raw load(const uint8_t* row, int unit, int quad) {
    const uint8_t* block = row + unit * 22;
    return {read32(block + 6 + 4 * quad), read32(block + 2), read16(block)};
  }
  static __device__ void expand(const Raw& raw, int, int quad, float (&v)[8]) {
    const float d = half_bits(raw.scale);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      v[i] = d * static_cast<float>(five_bits(raw.codes, raw.fifths, quad, i) - 16);
    }
  }
};

template <>
struct Blocks<FormatId::kQ5_1> {
  struct Raw {
    uint32_t codes, fifths, scale_min;
  };
  static __device__ Raw load(const uint8_t* row, int unit, int quad) {
    const uint8_t* block = row + unit * 24;
    return {read32_aligned(block + 8 + 4 * quad), read32_aligned(block + 4), read32_aligned(block)};
  }
  static __device__ void expand(const Raw& raw, int, int quad, float (&v)[8]) {
    const float d = half_bits(raw.scale_min), m = half_bits(raw.scale_min >> 16);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float code = static_cast<float>(five_bits(raw.codes, raw.fifths, quad, i));
      v[i] = __fadd_rn(__fmul_rn(d, code), m);
    }
  }
};

template <>
struct Blocks<FormatId::kIq4Nl> {
  using Raw = Blocks<FormatId::kQ4_0>::Raw;
  static __device__ Raw load(const uint8_t* row, int unit, int quad) {
    return Blocks<FormatId::kQ4_0>::load(row, unit, quad);
  }
  // kIq4NlValues, four to a word.
  static __device__ int level(uint32_t code) {
    const uint32_t low = __byte_perm(0xbfad9881u, 0xf6eaddcfu, code & 7);
    const uint32_t high = __byte_perm(0x26190d01u, 0x71594535u, code & 7);
    return static_cast<int8_t>(code & 8 ? high : low);
  }
  static __device__ void expand(const Raw& raw, int, int, float (&v)[8]) {
    const float d = half_bits(raw.scale);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = d * static_cast<float>(level(raw.codes >> (8 * i) & 15));
      v[4 + i] = d * static_cast<float>(level(raw.codes >> (8 * i + 4) & 15));
    }
  }
};

// The formats of 256 columns have eight units a block, and a scale for each half of a unit.

template <>
struct Blocks<FormatId::kQ2K> {
  struct Raw {
    uint32_t low, high, scales, scale_min;
  };
  static __device__ Raw load(const uint8_t* row, int unit, int quad) {
    const uint8_t* block = row + unit / 8 * 84;
    const int u = unit % 8;
    const uint8_t* q = block + 16 + u / 4 * 32 + 4 * quad;
    return {read32_aligned(q), read32_aligned(q + 16), read16(block + 2 * u),
            read32_aligned(block + 80)};
  }
  static __device__ void expand(const Raw& raw, int unit, int, float (&v)[8]) {
    const float d = half_bits(raw.scale_min), dmin = half_bits(raw.scale_min >> 16);
    const int shift = unit % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t pair = raw.scales >> (8 * h);
      const float scale = __fmul_rn(d, static_cast<float>(pair & 15));
      const float min = __fmul_rn(dmin, static_cast<float>(pair >> 4 & 15));
      const uint32_t codes = (h == 0 ? raw.low : raw.high) >> shift & 0x03030303;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[4 * h + i] = __fsub_rn(__fmul_rn(scale, byte_of(codes, i)), min);
      }
    }
  }
};

template <>
struct Blocks<FormatId::kQ3K> {
  struct Raw {
    uint32_t low, high, third_low, third_high, scales, scale;
  };
  static __device__ Raw load(const uint8_t* row, int unit, int quad) {
    const uint8_t* block = row + unit / 8 * 110;
    const int u = unit % 8;
    const uint8_t* q = block + 32 + u / 4 * 32 + 4 * quad;
    const uint8_t* third = block + 4 * quad;
    // Of the scales 2 u and 2 u + 1: the bytes with their lower four bits, then with the upper two.
    const uint8_t* packed = block + 96;
    return {read32(q),
            read32(q + 16),
            read32(third),
            read32(third + 16),
            read16(packed + 2 * u % 8) | read16(packed + 8 + 2 * u % 4) << 16,
            read16(block + 108)};
  }
  static __device__ void expand(const Raw& raw, int unit, int, float (&v)[8]) {
    const float d = half_bits(raw.scale);
    const int u = unit % 8, shift = u % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t lower = raw.scales >> (8 * h + (u < 4 ? 0 : 4)) & 15;
      const uint32_t upper = raw.scales >> (16 + 8 * h + u / 2 * 2) & 3;
      const float scale = d * static_cast<float>(static_cast<int>(lower | upper << 4) - 32);
      const uint32_t codes = ((h == 0 ? raw.low : raw.high) >> shift & 0x03030303) |
                             ((h == 0 ? raw.third_low : raw.third_high) >> u & 0x01010101) << 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) v[4 * h + i] = scale * (byte_of(codes, i) - 4);
    }
  }
};

// Scale and min of unit u of a q4_k or q5_k block, whose first 16 bytes are `head`.
__device__ __forceinline__ void k_scale_min(const uint32_t (&head)[4], int u, float& scale,
                                            float& min) {
  const int shift = u % 4 * 8;
  const uint32_t a = head[1] >> shift & 0xff, b = head[2] >> shift & 0xff,
                 c = head[3] >> shift & 0xff;
  const uint32_t s = u < 4 ? a & 63 : (c & 15) | a >> 6 << 4;
  const uint32_t m = u < 4 ? b & 63 : c >> 4 | b >> 6 << 4;
  scale = __fmul_rn(half_bits(head[0]), static_cast<float>(s));
  min = __fmul_rn(half_bits(head[0] >> 16), static_cast<float>(m));
}

template <>
struct Blocks<FormatId::kQ4K> {
  struct Raw {
    uint32_t low, high, head[4];
  };
  static __device__ Raw load(const uint8_t* row, int unit, int quad) {
    const uint8_t* block = row + unit / 8 * 144;
    const uint8_t* q = block + 16 + unit % 8 / 2 * 32 + 4 * quad;
    Raw raw{read32_aligned(q), read32_aligned(q + 16), {}};
#pragma unroll
    for (int i = 0; i < 4; ++i) raw.head[i] = read32_aligned(block + 4 * i);
    return raw;
  }
  static __device__ void expand(const Raw& raw, int unit, int, float (&v)[8]) {
    float scale, min;
    k_scale_min(raw.head, unit % 8, scale, min);
    const int shift = unit % 2 * 4;
    const uint32_t low = raw.low >> shift & 0x0f0f0f0f, high = raw.high >> shift & 0x0f0f0f0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = __fsub_rn(__fmul_rn(scale, byte_of(low, i)), min);
      v[4 + i] = __fsub_rn(__fmul_rn(scale, byte_of(high, i)), min);
    }
  }
};

template <>
struct Blocks<FormatId::kQ5K> {
  struct Raw {
    uint32_t low, high, fifth_low, fifth_high, head[4];
  };
  static __device__ Raw load(const uint8_t* row, int unit, int quad) {
    const uint8_t* block = row + unit / 8 * 176;
    const uint8_t* q = block + 48 + unit % 8 / 2 * 32 + 4 * quad;
    const uint8_t* fifth = block + 16 + 4 * quad;
    Raw raw{read32_aligned(q),
            read32_aligned(q + 16),
            read32_aligned(fifth),
            read32_aligned(fifth + 16),
            {}};
#pragma unroll
    for (int i = 0; i < 4; ++i) raw.head[i] = read32_aligned(block + 4 * i);
    return raw;
  }
  static __device__ void expand(const Raw& raw, int unit, int, float (&v)[8]) {
    float scale, min;
    const int u = unit % 8;
    k_scale_min(raw.head, u, scale, min);
    const int shift = u % 2 * 4;
    const uint32_t low = (raw.low >> shift & 0x0f0f0f0f) | (raw.fifth_low >> u & 0x01010101) << 4;
    const uint32_t high = (raw.high >> shift & 0x0f0f0f0f) | (raw.fifth_high >> u & 0x01010101)
                                                                 << 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = __fsub_rn(__fmul_rn(scale, byte_of(low, i)), min);
      v[4 + i] = __fsub_rn(__fmul_rn(scale, byte_of(high, i)), min);
    }
  }
};

template <>
struct Blocks<FormatId::kQ6K> {
  struct Raw {
    uint32_t low, high, top_low, top_high, scales, scale;
  };
  static __device__ Raw load(const uint8_t* row, int unit, int quad) {
    const uint8_t* block = row + unit / 8 * 210;
    const int u = unit % 8;
    const uint8_t* q = block + u / 4 * 64 + u % 2 * 32 + 4 * quad;
    const uint8_t* top = block + 128 + u / 4 * 32 + 4 * quad;
    return {read32(q),
            read32(q + 16),
            read32(top),
            read32(top + 16),
            read16(block + 192 + 2 * u),
            read16(block + 208)};
  }
  static __device__ void expand(const Raw& raw, int unit, int, float (&v)[8]) {
    const float d = half_bits(raw.scale);
    const int part = unit % 4, shift = part / 2 * 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float scale = d * static_cast<float>(static_cast<int8_t>(raw.scales >> (8 * h)));
      const uint32_t codes = ((h == 0 ? raw.low : raw.high) >> shift & 0x0f0f0f0f) |
                             ((h == 0 ? raw.top_low : raw.top_high) >> (2 * part) & 0x03030303)
                                 << 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) v[4 * h + i] = scale * (byte_of(codes, i) - 32);
    }
  }
};

// Groups of 4-bit codes (BlockW4, BlockW4Asym): kUnits units of 32 columns share a scale.
template <int kUnits, bool kAsymmetric, bool kFloat32>
struct GroupBlocks {
  static constexpr int kScaleOffset = kAsymmetric ? 2 : 0;
  static constexpr int kCodesOffset = kScaleOffset + (kFloat32 ? 4 : 2);
  static constexpr int kBytes = kCodesOffset + 16 * kUnits;
  struct Raw {
    uint32_t codes, scale, zero;
  };
  static __device__ Raw load(const uint8_t* row, int unit, int quad) {
    const uint8_t* block = row + unit / kUnits * kBytes;
    return {read32(block + kCodesOffset + unit % kUnits * 16 + 4 * quad),
            kFloat32 ? read32(block + kScaleOffset) : read16(block + kScaleOffset) << 16,
            kAsymmetric ? read16(block) & 0xff : 8};
  }
  static __device__ void expand(const Raw& raw, int, int, float (&v)[8]) {
    const float scale = __uint_as_float(raw.scale);
    const int zero = static_cast<int>(raw.zero);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = scale * static_cast<float>(static_cast<int>(raw.codes >> (8 * i) & 15) - zero);
      v[4 + i] = scale * static_cast<float>(static_cast<int>(raw.codes >> (8 * i + 4) & 15) - zero);
    }
  }
};
template <>
struct Blocks<FormatId::kW4G32> : GroupBlocks<1, false, false> {};
template <>
struct Blocks<FormatId::kW4G64> : GroupBlocks<2, false, false> {};
template <>
struct Blocks<FormatId::kW4G128> : GroupBlocks<4, false, false> {};
template <>
struct Blocks<FormatId::kW4G32Asym> : GroupBlocks<1, true, false> {};
template <>
struct Blocks<FormatId::kW4G64Asym> : GroupBlocks<2, true, false> {};
template <>
struct Blocks<FormatId::kW4G128Asym> : GroupBlocks<4, true, false> {};
template <>
struct Blocks<FormatId::kW4G32F32> : GroupBlocks<1, false, true> {};
template <>
struct Blocks<FormatId::kW4G64F32> : GroupBlocks<2, false, true> {};
template <>
struct Blocks<FormatId::kW4G128F32> : GroupBlocks<4, false, true> {};
template <>
struct Blocks<FormatId::kW4G32AsymF32> : GroupBlocks<1, true, true> {};
template <>
struct Blocks<FormatId::kW4G64AsymF32> : GroupBlocks<2, true, true> {};
template <>
struct Blocks<FormatId::kW4G128AsymF32> : GroupBlocks<4, true, true> {};

// A row's scale and the sum of its codes, then the codes.
template <>
struct Blocks<FormatId::kW8C> {
  struct Raw {
    uint32_t low, high, scale;
  };
  static __device__ Raw load(const uint8_t* row, int unit, int quad) {
    const uint8_t* codes = row + 8 + unit * 32 + 4 * quad;
    return {read32_aligned(codes), read32_aligned(codes + 16), read32_aligned(row)};
  }
  static __device__ void expand(const Raw& raw, int, int, float (&v)[8]) {
    const float scale = __uint_as_float(raw.scale);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = scale * static_cast<float>(static_cast<int8_t>(raw.low >> (8 * i)));
      v[4 + i] = scale * static_cast<float>(static_cast<int8_t>(raw.high >> (8 * i)));
    }
  }
};

// Calls body(std::integral_constant<FormatId, …>) for the format.
template <typename Body>
void with_format(FormatId id, const Body& body) {
  switch (id) {
#define BRAID_FORMAT_CASE(name) \
  case FormatId::name:          \
    return body(std::integral_constant<FormatId, FormatId::name>{});
    BRAID_FORMAT_CASE(kF32)
    BRAID_FORMAT_CASE(kF16)
    BRAID_FORMAT_CASE(kBF16)
    BRAID_FORMAT_CASE(kQ8_0)
    BRAID_FORMAT_CASE(kQ4_0)
    BRAID_FORMAT_CASE(kQ4_1)
    BRAID_FORMAT_CASE(kQ5_0)
    BRAID_FORMAT_CASE(kQ5_1)
    BRAID_FORMAT_CASE(kIq4Nl)
    BRAID_FORMAT_CASE(kQ2K)
    BRAID_FORMAT_CASE(kQ3K)
    BRAID_FORMAT_CASE(kQ4K)
    BRAID_FORMAT_CASE(kQ5K)
    BRAID_FORMAT_CASE(kQ6K)
    BRAID_FORMAT_CASE(kW4G32)
    BRAID_FORMAT_CASE(kW4G64)
    BRAID_FORMAT_CASE(kW4G128)
    BRAID_FORMAT_CASE(kW4G32Asym)
    BRAID_FORMAT_CASE(kW4G64Asym)
    BRAID_FORMAT_CASE(kW4G128Asym)
    BRAID_FORMAT_CASE(kW4G32F32)
    BRAID_FORMAT_CASE(kW4G64F32)
    BRAID_FORMAT_CASE(kW4G128F32)
    BRAID_FORMAT_CASE(kW4G32AsymF32)
    BRAID_FORMAT_CASE(kW4G64AsymF32)
    BRAID_FORMAT_CASE(kW4G128AsymF32)
    BRAID_FORMAT_CASE(kW8C)
#undef BRAID_FORMAT_CASE
  }
}

__host__ __device__ constexpr bool plain_format(FormatId id) {
  return id == FormatId::kF32 || id == FormatId::kF16 || id == FormatId::kBF16;
}

}  // namespace braid::cuda

#pragma once

// Weights in the layout of quant/device_tiles.h, and, for kernels that take them either way, those
// in rows as files have them under the same names.

#include "ops/linear/cuda/blocks.cuh"
#include "ops/linear/cuda/products.h"

namespace braid::cuda {

// kGroupUnits: units of 32 columns that share a scale.
template <FormatId>
struct TileScheme;
template <>
struct TileScheme<FormatId::kQ4_0> {
  static constexpr int kBits = 4, kGroupUnits = 1;
  static __device__ float scale(uint32_t bits) { return half_bits(bits); }
};
template <>
struct TileScheme<FormatId::kQ8_0> {
  static constexpr int kBits = 8, kGroupUnits = 1;
  static __device__ float scale(uint32_t bits) { return half_bits(bits); }
};

// Eight 4-bit codes of a row, less 8, as bfloat16 pairs.
__device__ __forceinline__ void spread_nibbles(uint32_t word, uint32_t (&w)[4]) {
  const uint32_t middle = 0x43084308;  // 128 + 8
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t raised = (word >> (4 * i) & 0x000f000f) | 0x43004300;  // 128 + code
    const __nv_bfloat162 pair = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&raised),
                                        *reinterpret_cast<const __nv_bfloat162*>(&middle));
    w[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
}
// Four signed bytes as bfloat16 pairs.
__device__ __forceinline__ void spread_bytes(uint32_t word, uint32_t& low, uint32_t& high) {
  const uint32_t unsigned_bytes = word ^ 0x80808080;
  float v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // 2^23 + code + 128
    v[i] = __uint_as_float(__byte_perm(unsigned_bytes, 0x4b000000, 0x7540 + i)) - 8388736.0f;
  }
  low = __byte_perm(__float_as_uint(v[0]), __float_as_uint(v[1]), 0x7632);
  high = __byte_perm(__float_as_uint(v[2]), __float_as_uint(v[3]), 0x7632);
}

// One row, as in files.
template <FormatId kFormat>
struct FileRow {
  using Raw = typename Blocks<kFormat>::Raw;
  static constexpr FormatId kId = kFormat;
  static constexpr bool kPlain = plain_format(kFormat);

  __device__ FileRow(const uint8_t* weights, int64_t row_bytes, int row)
      : data_(weights + row * row_bytes) {}
  __device__ Raw load(int unit, int quad) const { return Blocks<kFormat>::load(data_, unit, quad); }
  static __device__ void expand(const Raw& raw, int unit, int quad, float (&v)[8]) {
    Blocks<kFormat>::expand(raw, unit, quad, v);
  }
  // The column of number i of eight.
  static __device__ int column(int unit, int quad, int i) {
    return unit * kUnitColumns + 4 * quad + i % 4 + i / 4 * 16;
  }
  // Of plain formats.
  __device__ float element(int64_t col) const { return Blocks<kFormat>::element(data_, col); }

 private:
  const uint8_t* data_;
};

template <FormatId kFormat>
struct TileRow {
  using Scheme = TileScheme<kFormat>;
  struct Raw {
    uint2 codes;  // y: of 8 bits only
    uint32_t scale;
  };
  static constexpr FormatId kId = kFormat;
  static constexpr bool kPlain = false;
  static constexpr int kTileUnits = Scheme::kBits == 4 ? 2 : 1;

  __device__ TileRow(const uint8_t* weights, int64_t row_bytes, int row)
      : panel_(weights + row / 16 * 16 * row_bytes), row_(row % 16) {}
  // units: of a row.
  __device__ Raw load(int unit, int quad, int units) const {
    const uint8_t* at = panel_ + unit / kTileUnits * 512 + (row_ % 8 * 4 + quad) * 16;
    Raw raw{};
    if constexpr (Scheme::kBits == 4) {
      raw.codes.x = read32_aligned(at + unit % 2 * 8 + row_ / 8 * 4);
    } else {
      raw.codes = __ldg(reinterpret_cast<const uint2*>(at + row_ / 8 * 8));
    }
    const uint8_t* scales = panel_ + units / kTileUnits * 512;
    if constexpr (kTileUnits > Scheme::kGroupUnits) {
      raw.scale = read16(scales + unit / 2 * 64 + row_ % 8 * 8 + unit % 2 * 4 + row_ / 8 * 2);
    } else {
      raw.scale = read16(scales + unit / Scheme::kGroupUnits * 32 + row_ % 8 * 4 + row_ / 8 * 2);
    }
    return raw;
  }
  static __device__ void expand(const Raw& raw, int, int, float (&v)[8]) {
    const float scale = Scheme::scale(raw.scale);
    if constexpr (Scheme::kBits == 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[2 * i] = scale * static_cast<float>(static_cast<int>(raw.codes.x >> (4 * i) & 15) - 8);
        v[2 * i + 1] =
            scale * static_cast<float>(static_cast<int>(raw.codes.x >> (16 + 4 * i) & 15) - 8);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[i] = scale * static_cast<float>(static_cast<int8_t>(raw.codes.x >> (8 * i)));
        v[4 + i] = scale * static_cast<float>(static_cast<int8_t>(raw.codes.y >> (8 * i)));
      }
    }
  }
  static __device__ int column(int unit, int quad, int i) {
    return unit * kUnitColumns + 8 * quad + i;
  }
  __device__ float element(int64_t) const { return 0; }

 private:
  const uint8_t* panel_;
  int row_;
};

template <FormatId kFormat>
__device__ __forceinline__ typename Blocks<kFormat>::Raw load_unit(const FileRow<kFormat>& row,
                                                                   int unit, int quad, int) {
  return row.load(unit, quad);
}
template <FormatId kFormat>
__device__ __forceinline__ typename TileRow<kFormat>::Raw load_unit(const TileRow<kFormat>& row,
                                                                    int unit, int quad, int units) {
  return row.load(unit, quad, units);
}

template <typename T>
struct TypeOf {
  using Type = T;
};

// Calls body(TypeOf<FileRow or TileRow of the format>{}).
template <typename Body>
void with_rows(FormatId id, bool tiles, const Body& body) {
  if (tiles) {
    if (id == FormatId::kQ4_0) return body(TypeOf<TileRow<FormatId::kQ4_0>>{});
    return body(TypeOf<TileRow<FormatId::kQ8_0>>{});
  }
  with_format(id, [&](auto format) { body(TypeOf<FileRow<format()>>{}); });
}

}  // namespace braid::cuda

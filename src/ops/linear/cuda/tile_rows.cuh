#pragma once

// Weights in the layout of quant/device_tiles.h, and, for kernels that take them either way, those
// in rows as files have them under the same names.

#include "ops/linear/cuda/blocks.cuh"
#include "ops/linear/cuda/products.h"
#include "ops/linear/cuda/tensor_core.cuh"
#include "quant/tile_layout.h"

namespace braid::cuda {

// One row, as in files.
template <FormatId kFormat>
struct FileRow {
  using Raw = typename Blocks<kFormat>::Raw;
  static constexpr FormatId kId = kFormat;
  static constexpr bool kPlain = plain_format(kFormat), kTiles = false;

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
  // The same, rounded to pairs of bfloat16.
  static __device__ void expand_pairs(const Raw& raw, int unit, int quad, uint32_t (&w)[4]) {
    float v[8];
    expand(raw, unit, quad, v);
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = pack_bfloat16(v[2 * i], v[2 * i + 1]);
  }
  // Of plain formats.
  __device__ float element(int64_t col) const { return Blocks<kFormat>::element(data_, col); }

 private:
  const uint8_t* data_;
};

// The number that a scale of a file's type stands for; `bits`: 16 or 32 of them.
template <TileScale kScale>
__device__ __forceinline__ float scale_of(uint32_t bits) {
  if constexpr (kScale == TileScale::kFloat16) return half_bits(bits);
  if constexpr (kScale == TileScale::kBFloat16) return __uint_as_float(bits << 16);
  return __uint_as_float(bits);
}

// a · b + c of bfloat16 pairs, subnormal numbers included.
__device__ __forceinline__ uint32_t multiply_add_pair(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Eight 4-bit codes of a row as pairs (code − zero) / 64, of columns 2 i and 2 i + 1.
__device__ __forceinline__ void spread_nibbles(uint32_t word, uint32_t zero, uint32_t (&w)[4]) {
  constexpr uint32_t kUp127 = 0x7f007f00, kUp123 = 0x7d007d00;  // 2^127, 2^123
  const uint32_t upper = word >> 8;
  w[0] = multiply_add_pair(word & 0x000f000f, kUp127, zero);
  w[1] = multiply_add_pair(word & 0x00f000f0, kUp123, zero);
  w[2] = multiply_add_pair(upper & 0x000f000f, kUp127, zero);
  w[3] = multiply_add_pair(upper & 0x00f000f0, kUp123, zero);
}
// Four 8-bit codes, 128 too large, likewise.
__device__ __forceinline__ void spread_bytes(uint32_t word, uint32_t& low, uint32_t& high) {
  constexpr uint32_t kUp127 = 0x7f007f00, kTwo = 0xc000c000;  // −128 / 64
  low = multiply_add_pair(__byte_perm(word, 0, 0x4140), kUp127, kTwo);
  high = multiply_add_pair(__byte_perm(word, 0, 0x4342), kUp127, kTwo);
}

template <FormatId kFormat>
struct TileRow {
  using Layout = TileLayout<kFormat>;
  struct Raw {
    uint2 codes;  // y: of 8 bits only
    uint32_t scale, zero;
  };
  static constexpr FormatId kId = kFormat;
  static constexpr bool kPlain = false, kTiles = true;

  __device__ TileRow(const uint8_t* weights, int64_t row_bytes, int row)
      : panel_(weights + row / kTileRows * kTileRows * row_bytes), row_(row % kTileRows) {}
  // units: of 32 columns, of a row.
  __device__ Raw load(int unit, int quad, int units) const {
    constexpr int kRuns = Layout::kUnitCols / 32;  // of 32 columns in a unit of tiles
    const int run = unit % kRuns;
    const uint8_t* at = panel_ + unit / kRuns * Layout::kUnitBytes;
    const uint8_t* codes = at + (run / 2 * 2 + row_ / 16) * 512 + (row_ % 8 * 4 + quad) * 16;
    Raw raw{};
    if constexpr (Layout::kBits == 4) {
      raw.codes.x = read32_aligned(codes + run % 2 * 8 + row_ / 8 % 2 * 4);
    } else {
      raw.codes = __ldg(reinterpret_cast<const uint2*>(codes + row_ / 8 % 2 * 8));
    }
    const int place = row_ % 8 * 4 + row_ / 8;
    if constexpr (Layout::kGroup == 0) {
      raw.scale = read32_aligned(panel_ + units / kRuns * Layout::kUnitBytes + place * 4);
    } else {
      const uint8_t* group =
          at + Layout::kCodeBytes + run * 32 / Layout::kGroup * Layout::kGroupBytes;
      raw.scale =
          Layout::kScaleBytes == 4 ? read32_aligned(group + place * 4) : read16(group + place * 2);
      if (Layout::kZeros) raw.zero = read16(group + kTileRows * Layout::kScaleBytes + place * 2);
    }
    return raw;
  }
  static __device__ void expand(const Raw& raw, int, int, float (&v)[8]) {
    const float scale = scale_of<Layout::kScale>(raw.scale);
    if constexpr (Layout::kBits == 4) {
      const int zero = Layout::kZeros ? static_cast<int>(-64 * __uint_as_float(raw.zero << 16)) : 8;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int code = static_cast<int>(raw.codes.x >> (i / 2 * 4 + i % 2 * 16) & 15);
        v[i] = scale * static_cast<float>(code - zero);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t word = i < 4 ? raw.codes.x : raw.codes.y;
        v[i] = scale * static_cast<float>(static_cast<int>(word >> (i % 4 * 8) & 0xff) - 128);
      }
    }
  }
  // The same, rounded to pairs of bfloat16.
  static __device__ void expand_pairs(const Raw& raw, int unit, int quad, uint32_t (&w)[4]) {
    if constexpr (Layout::kBits == 4 && Layout::kScale == TileScale::kBFloat16) {
      // A product of bfloat16 numbers is rounded once, as that of float32 ones is.
      constexpr uint32_t kUp6 = 0x42804280, kNone = 0x80008000;  // 64, −0
      const uint32_t zero =
          Layout::kZeros ? __byte_perm(raw.zero, 0, 0x1010) : 0xbe00be00;  // −8 / 64
      const uint32_t scale = __byte_perm(raw.scale, 0, 0x1010);
      spread_nibbles(raw.codes.x, zero, w);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        w[i] = multiply_add_pair(multiply_add_pair(w[i], kUp6, kNone), scale, kNone);
      }
    } else {
      float v[8];
      expand(raw, unit, quad, v);
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = pack_bfloat16(v[2 * i], v[2 * i + 1]);
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
    with_tile_format(id, [&](auto format) { body(TypeOf<TileRow<format()>>{}); });
    return;
  }
  with_format(id, [&](auto format) { body(TypeOf<FileRow<format()>>{}); });
}

}  // namespace braid::cuda

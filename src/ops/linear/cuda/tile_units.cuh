#pragma once

// Units of quant/device_tiles.h, multiplied with few tokens by a warp.
//
// Codes become bfloat16 numbers without rounding: the bits of a code, alone in a 16-bit word, are a
// subnormal number, code · 2^-133 (the word's exponent field may get its lowest bit from a code:
// numbers go on evenly there), and one multiply-add brings it to (code − zero) / 64. Products of a
// group are added up in float32, multiplied by the scale and added to the row's sum; the factor 64
// comes last. No weight is rounded, so that a result is off by at most (cols + 3) · 2^-23 · Σ |w
// x|: one rounding, or cutting off, for each product that is added and three for scaling.

#include <cstdint>
#include <type_traits>

#include "ops/linear/cuda/tensor_core.cuh"
#include "ops/linear/cuda/tile_rows.cuh"

namespace braid::cuda {

// What a lane has of a unit.
template <typename Layout>
struct UnitCodes {
  static constexpr int kRuns = Layout::kBits == 4 ? Layout::kUnitCols / 64 : 1;
  static constexpr int kGroups = Layout::kGroups == 0 ? 1 : Layout::kGroups;
  static constexpr int kChunks = Layout::kUnitCols / kGroups / kUnitColumns;  // of 32, of a group
  using Scales = std::conditional_t<Layout::kScaleBytes == 4, uint4, uint2>;

  uint4 codes[kRuns][2];
  Scales scales[kGroups];
  uint2 zeros[kGroups];

  // Where a lane finds scales, from the first one of a group.
  static __device__ __forceinline__ int scales_of(int lane) {
    return lane / 4 * (4 * Layout::kScaleBytes);
  }
  // codes: of the lane; scales: of the first group, of the lane.
  __device__ __forceinline__ void load(const unsigned char* of_codes,
                                       const unsigned char* of_scales, int lane) {
#pragma unroll
    for (int i = 0; i < 2 * kRuns; ++i) {
      codes[i / 2][i % 2] = *reinterpret_cast<const uint4*>(of_codes + i * 512);
    }
    if constexpr (Layout::kGroup != 0) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const unsigned char* group = of_scales + g * Layout::kGroupBytes;
        scales[g] = *reinterpret_cast<const Scales*>(group);
        if constexpr (Layout::kZeros) {
          const int further = kTileRows * Layout::kScaleBytes + lane / 4 * 8 - scales_of(lane);
          zeros[g] = *reinterpret_cast<const uint2*>(group + further);
        }
      }
    }
  }
  __device__ __forceinline__ void load(const unsigned char* unit, int lane) {
    load(unit + lane * 16, unit + Layout::kCodeBytes + scales_of(lane), lane);
  }
  // Of row lane / 4 + 8 i.
  __device__ __forceinline__ float scale(int g, int i) const {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(&scales[g]);
    if constexpr (Layout::kScaleBytes == 4) return __uint_as_float(words[i]);
    return scale_of<Layout::kScale>(words[i / 2] >> (16 * (i % 2)) & 0xffff);
  }
  __device__ __forceinline__ uint32_t zero(int g, int i) const {
    if constexpr (!Layout::kZeros) return 0xbe00be00;  // −8 / 64
    return __byte_perm(i < 2 ? zeros[g].x : zeros[g].y, 0, i % 2 == 0 ? 0x1010 : 0x3232);
  }
  // Chunk of 32 columns, counted through the unit: those of row lane / 4 + 8 i.
  __device__ __forceinline__ void spread(int chunk, int i, uint32_t zero, uint32_t (&w)[4]) const {
    const uint4& v = codes[Layout::kBits == 4 ? chunk / 2 : 0][i / 2];
    if constexpr (Layout::kBits == 4) {
      spread_nibbles(chunk % 2 == 0 ? (i % 2 == 0 ? v.x : v.y) : (i % 2 == 0 ? v.z : v.w), zero, w);
    } else {
      spread_bytes(i % 2 == 0 ? v.x : v.z, w[0], w[1]);
      spread_bytes(i % 2 == 0 ? v.y : v.w, w[2], w[3]);
    }
  }
};

// Adds a unit's products to the sums of a panel. inputs(t, chunk): of the lane's token of tile t,
// columns quad · 8 to quad · 8 + 7 of the unit's chunk of 32, as uint4.
template <typename Layout, int kTokenTiles, typename Inputs>
__device__ __forceinline__ void multiply_unit(const UnitCodes<Layout>& unit, const Inputs& inputs,
                                              float (&sums)[2][kTokenTiles][4]) {
  using Codes = UnitCodes<Layout>;
#pragma unroll
  for (int g = 0; g < Codes::kGroups; ++g) {
    float products[2][kTokenTiles][4];
    float(&to)[2][kTokenTiles][4] = Layout::kGroup == 0 ? sums : products;
#pragma unroll
    for (int c = 0; c < Codes::kChunks; ++c) {
      const int chunk = g * Codes::kChunks + c;
      uint4 b[kTokenTiles];
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        b[t] = inputs(t, chunk);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t low[4], high[4];
        unit.spread(chunk, 2 * half, unit.zero(g, 2 * half), low);
        unit.spread(chunk, 2 * half + 1, unit.zero(g, 2 * half + 1), high);
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
          if (c == 0 && Layout::kGroup != 0) {
            multiply(to[half][t], low[0], high[0], low[1], high[1], b[t].x, b[t].y);
          } else {
            multiply_add(to[half][t], low[0], high[0], low[1], high[1], b[t].x, b[t].y);
          }
          multiply_add(to[half][t], low[2], high[2], low[3], high[3], b[t].z, b[t].w);
        }
      }
    }
    if constexpr (Layout::kGroup != 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float low = unit.scale(g, 2 * half), high = unit.scale(g, 2 * half + 1);
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
          sums[half][t][0] = fmaf(low, products[half][t][0], sums[half][t][0]);
          sums[half][t][1] = fmaf(low, products[half][t][1], sums[half][t][1]);
          sums[half][t][2] = fmaf(high, products[half][t][2], sums[half][t][2]);
          sums[half][t][3] = fmaf(high, products[half][t][3], sums[half][t][3]);
        }
      }
    }
  }
}

// The units that a copy brings: about 2 KiB.
template <typename Layout>
struct Piece {
  static constexpr int kCols = tile_piece_columns<Layout>();
  static constexpr int kUnits = kCols / Layout::kUnitCols;
  static constexpr int kBytes = kUnits * Layout::kUnitBytes;
};

}  // namespace braid::cuda

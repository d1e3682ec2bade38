#pragma once

// Tiles of 4-bit codes for weight_stream.cuh that are multiplied as they are, with no instruction
// to make numbers of them: fewer instructions than those of stream_tiles.cuh for one tile of
// tokens, more for two.
//
// A code c alone in a 16-bit word is the bfloat16 number c · 2^-133 (tile_units.cuh), or c · 2^-129
// four bits further up. Inputs that meet the former are taken times 2^64, those of the latter times
// 2^60, which rounds nothing; from 2^64 (1.8e19) on they would be infinite. What is then too much,
// 8 for each weight, comes off at once: −8 Σ x of a group is added to its products. The factor 2^69
// comes last. A result is off by at most (cols + 3) · 2^-23 · scale · Σ (c + 8) |x|.

#include "ops/linear/cuda/stream_tiles.cuh"

namespace braid::cuda {

template <FormatId kFormat>
struct ScalingTileSource : TileSource<kFormat> {
  using Base = TileSource<kFormat>;
  using Layout = typename Base::Layout;
  static_assert(Layout::kBits == 4 && Layout::kGroup == 128 && !Layout::kZeros);
  static_assert(Base::kPieceUnits == 1 && Layout::kGroups == 1);

  class OneTile : public Base::template Lane<1> {
   public:
    using Parent = typename Base::template Lane<1>;
    using Parent::Parent;
    __device__ __forceinline__ void multiply(int step, uint32_t weights, uint32_t inputs,
                                             float (&sums)[2][1][4]) const {
      if (step * this->column_warps_ + this->column_warp_ >= this->tile_units_) return;
      UnitCodes<Layout> unit;
      unit.load(Parent::shared_pointer(weights + this->weights_), this->lane_);
      float products[2][1][4] = {}, offsets[4] = {};
#pragma unroll
      for (int chunk = 0; chunk < Layout::kUnitCols / kUnitColumns; ++chunk) {
        const uint4 x = scaled(*reinterpret_cast<const uint4*>(
            Parent::shared_pointer(inputs + this->inputs_[0] + chunk * this->chunk_bytes_)));
        uint32_t w[2][2][4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          unit.take(chunk, 2 * half, w[half][0]);
          unit.take(chunk, 2 * half + 1, w[half][1]);
        }
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
          const uint32_t x0 = k == 0 ? x.x : x.z, x1 = k == 0 ? x.y : x.w;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            multiply_add(products[half][0], w[half][0][k], w[half][1][k], w[half][0][k + 1],
                         w[half][1][k + 1], x0, x1);
          }
          constexpr uint32_t kLow = 0x80088008, kHigh = 0x80808080;  // −8 in either place
          multiply_add(offsets, kLow, kLow, kHigh, kHigh, x0, x1);
        }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) products[i / 4][0][i % 4] += offsets[i % 4];
      unit.scale_products(0, products, sums);
    }
    __device__ void finish(float (&sums)[2][1][4]) const {
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i / 4][0][i % 4] *= 0x1p69f;
    }

   private:
    static __device__ __forceinline__ uint4 scaled(uint4 x) {
      constexpr uint32_t kUp64 = 0x5f805f80, kUp60 = 0x5d805d80, kNone = 0x80008000;
      return {multiply_add_pair(x.x, kUp64, kNone), multiply_add_pair(x.y, kUp60, kNone),
              multiply_add_pair(x.z, kUp64, kNone), multiply_add_pair(x.w, kUp60, kNone)};
    }
  };
  template <int>
  using Lane = OneTile;
};

}  // namespace braid::cuda

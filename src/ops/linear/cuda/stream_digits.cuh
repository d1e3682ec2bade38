#pragma once

// Tiles of symmetric 4-bit codes in groups of 128 columns for weight_stream.cuh, with inputs of
// digits (digits.cuh): codes · 16 go to the integer tensor cores by a mask and an exclusive or, two
// of an input's digits are neighbouring tokens to them. Sums of a group are exact.

#include "ops/linear/cuda/digits.cuh"
#include "ops/linear/cuda/stream_codes.cuh"

namespace braid::cuda {

// A step's inputs are boxes of a group of columns.
struct DigitSource : TileSource<FormatId::kW4G128> {
  static constexpr bool kDigits = true;
  static constexpr int kSets = 1;  // few instructions: eight warps keep up
  static constexpr int kTileTokens = 4, kLaneTokens = 1;
  static_assert(kPieceUnits == 1 && kPieceColumns == kDigitGroup);

  static __host__ __device__ int box_bytes(const StreamPhase& phase) {
    return (phase.box_tokens * kDigitGroup + kBoxAlignment - 1) / kBoxAlignment * kBoxAlignment;
  }

  template <int kTokens>
  static __device__ __forceinline__ void bring_inputs(const StreamPhase& phase, const TokenTile&,
                                                      int step, const uint16_t*, uint32_t to,
                                                      uint32_t barrier) {
    const int lane = threadIdx.x % kWarp;
    const int boxes = kSetWarps >> phase.row_shift;
    if (lane == 0) arrive_and_expect(barrier, boxes * phase.box_tokens * kDigitGroup);
    __syncwarp();
    if (lane < boxes) {
      copy_box(to + lane * box_bytes(phase), &phase.inputs,
               (step * boxes + lane) * (kDigitGroup / 2), 0, barrier);
    }
  }

  static int input_bytes(const StreamPhase& phase, int) {
    return (kSetWarps >> phase.row_shift) * box_bytes(phase);
  }

  template <int kTokenTiles>
  class Lane {
   public:
    __device__ Lane(const StreamPhase& phase, const TokenTile& tokens, int, int row_warp,
                    int column_warp, int lane)
        : lane_(lane),
          count_(tokens.count),
          column_warp_(column_warp),
          column_warps_(kSetWarps >> phase.row_shift),
          tile_units_(phase.tile_units),
          weights_((row_warp * column_warps_ + column_warp) * kPieceBytes),
          inputs_(column_warp * box_bytes(phase)) {
      const int row = phase.box_tokens - 1;
      turn_ = row % 8;
      scales_ = inputs_ + row * kDigitGroup + lane % 4 * 4;
      inputs_ += lane % 8 * kDigitGroup + ((lane / 8) ^ (lane % 8)) * 16;
    }

    __device__ __forceinline__ void multiply(int step, uint32_t weights, uint32_t inputs,
                                             float (&sums)[2][kTokenTiles][2]) const {
      if (step * column_warps_ + column_warp_ >= tile_units_) return;
      UnitCodes<Layout> unit;
      unit.load(static_cast<const unsigned char*>(__cvta_shared_to_generic(weights + weights_)),
                lane_);
      // Sums of integers below 2^22 as float32 numbers.
      constexpr int32_t kZero = 0x4b400000;
      constexpr float kFloatZero = 0x1.8p23f;
      int32_t products[2][kTokenTiles][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
          for (int i = 0; i < 4; ++i) products[half][t][i] = kZero;
        }
      }
#pragma unroll
      for (int run = 0; run < 2; ++run) {
        uint4 a[2][2];  // of 32 columns and 16 rows
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4& v = unit.codes[run][half];
          a[0][half] = codes_of(v.x, v.y);
          a[1][half] = codes_of(v.z, v.w);
        }
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
          if (t > 0 && kTileTokens * t >= count_) break;
          uint32_t b[4];
          load_matrices(b, (inputs + inputs_ + t * 8 * kDigitGroup) ^ (run * 64));
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            multiply_add_codes(products[half][t], a[0][half], b[0], b[1]);
          }
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            multiply_add_codes(products[half][t], a[1][half], b[2], b[3]);
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        if (t > 0 && kTileTokens * t >= count_) break;
        float x_scale;
        asm volatile("ld.shared.f32 %0, [%1];"
                     : "=f"(x_scale)
                     : "r"(inputs + scales_ + ((t ^ turn_) * 16))
                     : "memory");
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float high = __int_as_float(products[half][t][2 * i]) - kFloatZero;
            const float low = __int_as_float(products[half][t][2 * i + 1]) - kFloatZero;
            const float scale = unit.scale(0, 2 * half + i) * x_scale;
            sums[half][t][i] = fmaf(scale, fmaf(high, 256.0f, low), sums[half][t][i]);
          }
        }
      }
    }

    __device__ void finish(float (&sums)[2][kTokenTiles][2]) const {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
          for (int i = 0; i < 2; ++i) sums[half][t][i] *= 0x1p-4f;
        }
      }
    }

   private:
    // (code − 8) · 16 of eight columns of two rows, as the tensor cores take them.
    static __device__ __forceinline__ uint4 codes_of(uint32_t row, uint32_t row8) {
      constexpr uint32_t kUpper = 0xf0f0f0f0u, k128 = 0x80808080u;
      return {((row << 4) & kUpper) ^ k128, ((row8 << 4) & kUpper) ^ k128, (row & kUpper) ^ k128,
              (row8 & kUpper) ^ k128};
    }

    int lane_, count_, column_warp_, column_warps_, tile_units_, turn_;
    uint32_t weights_, inputs_, scales_;
  };
};

}  // namespace braid::cuda

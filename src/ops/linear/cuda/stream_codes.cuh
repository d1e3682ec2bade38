#pragma once

// Tiles of w8c with inputs of int8 codes (int8_products.h) for weight_stream.cuh: exact sums of
// integers, scaled once.

#include "ops/linear/cuda/stream_tiles.cuh"

namespace braid::cuda {

// c[16 rows, 8 tokens] += a[16, 32] · b[32, 8] of int8; places as those of multiply_add() with two
// codes for each number.
__device__ __forceinline__ void multiply_add_codes(int32_t (&c)[4], const uint4& a, uint32_t b0,
                                                   uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// For one matrix; inputs come as boxes of 128 codes a row.
struct CodeSource : TileSource<FormatId::kW8C> {
  using Sum = int32_t;
  static constexpr int kSets = 1;  // few instructions: eight warps keep up
  static constexpr int kBoxColumns = 128, kRowPad = 4;
  static constexpr bool kBlocks = false, kDeals = false;
  static constexpr int kTailWarps = 2;

  template <int kTokens>
  class Inputs {
   public:
    __device__ Inputs(const StreamPhase& phase, const TokenTile& tokens, const uint16_t*)
        : map_(&phase.inputs), boxes_(step_columns(phase) / kBoxColumns), begin_(tokens.begin) {}
    __device__ __forceinline__ void bring(int step, uint32_t to, uint32_t barrier) const {
      const int lane = threadIdx.x % kWarp;
      if (lane == 0) arrive_and_expect(barrier, boxes_ * kTokens * kBoxColumns);
      __syncwarp();
      if (lane < boxes_) {
        copy_box(to + lane * kTokens * kBoxColumns, map_,
                 (step * boxes_ + lane) * (kBoxColumns / 2), begin_, barrier);
      }
    }

   private:
    const CUtensorMap* map_;
    int boxes_, begin_;
  };

  static int input_bytes(const StreamPhase& phase, int tokens) {
    return tokens * step_columns(phase);
  }

  template <int kTokenTiles>
  class Lane {
   public:
    Lane() = default;
    __device__ Lane(const StreamPhase& phase, const TokenTile& tokens, int row_warp,
                    int column_warp, int lane)
        : lane_(lane),
          count_(tokens.count),
          first_unit_(column_warp * kPieceUnits),
          step_units_((kSetWarps >> phase.row_shift) * kPieceUnits),
          tile_units_(phase.tile_units),
          weights_((row_warp * (kSetWarps >> phase.row_shift) + column_warp) * kPieceBytes +
                   row_warp * kTailBytes + lane * 16) {
      const int row = lane % 8, piece = lane / 8;  // of the matrices that a lane points to
      constexpr int kBoxPieces = kBoxColumns / kPieceColumns;
      inputs_ = column_warp / kBoxPieces * 8 * kTokenTiles * kBoxColumns + row * kBoxColumns +
                ((column_warp % kBoxPieces * 4 + piece) ^ row) * 16;
    }

    __device__ void begin(int) {}
    __device__ __forceinline__ void multiply(int step, uint32_t weights, uint32_t inputs,
                                             int32_t (&sums)[2][kTokenTiles][4]) const {
      const int left = tile_units_ - step * step_units_ - first_unit_;
      if (left <= 0) return;
      uint4 a[kPieceUnits][2];
#pragma unroll
      for (int u = 0; u < kPieceUnits; ++u) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          a[u][half] = codes_at(weights + weights_ + u * Layout::kUnitBytes + half * 512);
        }
      }
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        if (t > 0 && 8 * t >= count_) break;
        uint32_t b[4];
        load_matrices(b, inputs + inputs_ + 8 * t * kBoxColumns);
#pragma unroll
        for (int half = 0; half < 2; ++half)
          multiply_add_codes(sums[half][t], a[0][half], b[0], b[1]);
        if (left > 1) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            multiply_add_codes(sums[half][t], a[1][half], b[2], b[3]);
          }
        }
      }
    }
    __device__ void pass_scales(const StreamPhase& phase, uint32_t weights, float* of_rows) const {
      if (first_unit_ > 0) return;
      const int units = tile_units_ - (phase.steps - 1) * step_units_;
      pass_panel_scales(weights + weights_ - lane_ * 16 + units * Layout::kUnitBytes, of_rows,
                        lane_);
    }
    static __device__ __forceinline__ int token(int quad, int i) { return 2 * quad + i; }

   private:
    // Of rows l / 4 and l / 4 + 8 in turn, as the tensor cores take them; kept plus 128.
    static __device__ __forceinline__ uint4 codes_at(uint32_t address) {
      uint4 v;
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.x), "=r"(v.z), "=r"(v.y), "=r"(v.w)
                   : "r"(address)
                   : "memory");
      constexpr uint32_t k128 = 0x80808080u;
      return {v.x ^ k128, v.y ^ k128, v.z ^ k128, v.w ^ k128};
    }

    int lane_, count_, first_unit_, step_units_, tile_units_;
    uint32_t weights_, inputs_;
  };

  // A lane has the scale of one token.
  class Outputs {
   public:
    static constexpr bool kReadsInputs = true;
    __device__ Outputs(const StreamPhase& phase, const TokenTile& tokens) {
      const int lane = threadIdx.x % kWarp;
      if (lane < tokens.count) token_scale_ = __ldcg(phase.x_scales + tokens.begin + lane);
    }
    __device__ float of_token(int token) const {
      return __shfl_sync(0xffffffffu, token_scale_, token);
    }
    // As the CPU scales sums.
    __device__ float value(int32_t sum, float of_token, const float* of_rows, int row) const {
      return __fmul_rn(static_cast<float>(sum), __fmul_rn(of_token, of_rows[row]));
    }

   private:
    float token_scale_ = 0;
  };
};

}  // namespace braid::cuda

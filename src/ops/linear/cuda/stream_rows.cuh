#pragma once

// Rows of bfloat16 for weight_stream.cuh: boxes of tensor maps, 16 rows × 64 columns of them for
// each multiplying warp.

#include "ops/linear/cuda/weight_stream.cuh"

namespace braid::cuda {

struct RowSource {
  using Sum = float;
  using Outputs = PlainOutputs;
  static constexpr int kSets = 1;
  static constexpr int kTailBytes = 0, kTailWarps = 0;
  static constexpr bool kBlocks = true, kDeals = true;
  static constexpr int kRows = 16, kPieceColumns = 64;
  static constexpr int kPieceBytes = kRows * kPieceColumns * 2;
  // Rows of a box of inputs; rows that are copied singly lie 16 bytes further apart, in other
  // banks.
  static constexpr int kInputStride = 2 * kPieceColumns, kCopiedStride = kInputStride + 16;

  static __host__ __device__ int step_columns(const StreamPhase& phase) {
    return (kSetWarps >> phase.row_shift) * kPieceColumns;
  }

  static __device__ __forceinline__ void bring(const StreamPhase& phase, int expert, int unit,
                                               int step, uint32_t to, uint32_t barrier) {
    const int row = expert * phase.expert_rows + unit * phase.unit_rows;
    const int column_warps = kSetWarps >> phase.row_shift;
    arrive_and_expect(barrier, slot_bytes<RowSource>());
    for (int k = 0; k < column_warps; ++k, to += phase.row_warps * kPieceBytes) {
      const int column = (step * column_warps + k) * kPieceColumns;
      stream_box(to, &phase.weights.boxes, column, row, barrier);
      if (phase.gated) {
        stream_box(to + phase.row_warps * kPieceBytes / 2, &phase.up.boxes, column,
                   row + phase.up_row, barrier);
      }
    }
  }

  template <int kTokens>
  static __device__ __forceinline__ void bring_inputs(const StreamPhase& phase,
                                                      const TokenTile& tokens, int step,
                                                      const uint16_t* row, uint32_t to,
                                                      uint32_t barrier) {
    const int lane = threadIdx.x % kWarp;
    const int column_warps = kSetWarps >> phase.row_shift;
    const uint32_t bytes = phase.x_rows != nullptr ? tokens.count * kInputStride
                                                   : column_warps * kTokens * kInputStride;
    if (lane == 0) arrive_and_expect(barrier, bytes);
    __syncwarp();
    if (phase.x_rows == nullptr) {
      if (lane < column_warps) {
        copy_box(to + lane * kTokens * kInputStride, &phase.inputs,
                 (step * column_warps + lane) * kPieceColumns, tokens.begin, barrier);
      }
    } else if (lane < tokens.count) {
      copy_bytes(to + lane * kCopiedStride, row + step * kPieceColumns, kInputStride, barrier);
    }
  }

  static int input_bytes(const StreamPhase& phase, int tokens) {
    const int bytes =
        tokens *
        (phase.x_rows != nullptr ? kCopiedStride : (kSetWarps >> phase.row_shift) * kInputStride);
    return ceil_divide(bytes, kBoxAlignment) * kBoxAlignment;
  }

  template <int kTokenTiles>
  class Lane {
   public:
    __device__ Lane(const StreamPhase& phase, const TokenTile&, int, int row_warp, int column_warp,
                    int lane)
        : lane_(lane),
          stride_(phase.x_rows == nullptr ? kInputStride : kCopiedStride),
          turned_(phase.x_rows == nullptr ? lane % 8 : 0),
          weights_((column_warp * phase.row_warps + row_warp) * kPieceBytes +
                   lane % 16 * (2 * kPieceColumns)),
          inputs_(column_warp * 8 * kTokenTiles * kInputStride + lane % 8 * stride_) {}

    __device__ __forceinline__ void multiply(int, uint32_t weights, uint32_t inputs,
                                             float (&sums)[1][kTokenTiles][4]) const {
      const uint32_t a_at = weights + weights_, b_at = inputs + inputs_;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t b[kTokenTiles][4];
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
          load_matrices(b[t], b_at + t * 8 * stride_ + ((half * 4 + lane_ / 8) ^ turned_) * 16);
        }
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          uint32_t a[4];
          load_matrices(a, a_at + (((half * 2 + k) * 2 + lane_ / 16) ^ (lane_ % 8)) * 16);
#pragma unroll
          for (int t = 0; t < kTokenTiles; ++t) {
            multiply_add(sums[0][t], a, b[t][2 * k], b[t][2 * k + 1]);
          }
        }
      }
    }
    __device__ void finish(float (&)[1][kTokenTiles][4]) const {}

   private:
    int lane_, stride_;
    int turned_;  // the chunks of a box's row are permuted
    uint32_t weights_, inputs_;
  };
};

}  // namespace braid::cuda

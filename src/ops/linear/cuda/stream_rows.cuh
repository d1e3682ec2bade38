#pragma once

// Rows of bfloat16 for weight_stream.cuh: boxes of tensor maps, 16 rows × 64 columns of them for
// each multiplying warp.

#include "ops/linear/cuda/weight_stream.cuh"

namespace braid::cuda {

struct RowSource {
  using Sum = float;
  using Outputs = PlainOutputs;
  static constexpr int kSets = 1;
  static constexpr bool kManyRegisters = false;
  static constexpr int kBoundThreads = 0;
  static constexpr int kTailBytes = 0, kTailWarps = 0;
  static constexpr bool kBlocks = true, kDeals = true;
  static constexpr int kRows = 16, kPieceColumns = 64, kRowPad = 4;
  static constexpr int kPieceBytes = kRows * kPieceColumns * 2;
  // Rows of a box of inputs; rows that are copied singly lie 16 bytes further apart, in other
  // banks.
  static constexpr int kInputStride = 2 * kPieceColumns, kCopiedStride = kInputStride + 16;

  static __host__ __device__ int step_columns(const StreamPhase& phase) {
    return (kSetWarps >> phase.row_shift) * kPieceColumns;
  }

  class Weights {
   public:
    __device__ Weights(const StreamPhase& phase, int expert, int unit)
        : boxes_(&phase.weights.boxes),
          up_(phase.gated ? &phase.up.boxes : nullptr),
          row_(expert * phase.expert_rows + unit * phase.unit_rows),
          up_row_(row_ + phase.up_row),
          column_warps_(kSetWarps >> phase.row_shift),
          piece_bytes_(phase.row_warps * kPieceBytes) {}
    __device__ __forceinline__ void bring(bool, uint32_t to, uint32_t barrier) {
      arrive_and_expect(barrier, slot_bytes<RowSource>());
      for (int k = 0; k < column_warps_; ++k, to += piece_bytes_, column_ += kPieceColumns) {
        stream_box(to, boxes_, column_, row_, barrier);
        if (up_ != nullptr) stream_box(to + piece_bytes_ / 2, up_, column_, up_row_, barrier);
      }
    }

   private:
    const CUtensorMap *boxes_, *up_;
    int row_, up_row_, column_warps_, piece_bytes_, column_ = 0;
  };

  template <int kTokens>
  class Inputs {
   public:
    __device__ Inputs(const StreamPhase& phase, const TokenTile& tokens, const uint16_t* row)
        : map_(&phase.inputs),
          row_(row),
          copied_(phase.x_rows != nullptr),
          column_warps_(kSetWarps >> phase.row_shift),
          begin_(tokens.begin),
          count_(tokens.count),
          bytes_((copied_ ? count_ : column_warps_ * kTokens) * kInputStride) {}
    __device__ __forceinline__ void bring(int step, uint32_t to, uint32_t barrier) const {
      const int lane = threadIdx.x % kWarp;
      if (lane == 0) arrive_and_expect(barrier, bytes_);
      __syncwarp();
      if (!copied_) {
        if (lane < column_warps_) {
          copy_box(to + lane * kTokens * kInputStride, map_,
                   (step * column_warps_ + lane) * kPieceColumns, begin_, barrier);
        }
      } else if (lane < count_) {
        copy_bytes(to + lane * kCopiedStride, row_ + step * kPieceColumns, kInputStride, barrier);
      }
    }

   private:
    const CUtensorMap* map_;
    const uint16_t* row_;
    bool copied_;
    int column_warps_, begin_, count_, bytes_;
  };

  static int input_bytes(const StreamPhase& phase, int tokens) {
    const int bytes =
        tokens *
        (phase.x_rows != nullptr ? kCopiedStride : (kSetWarps >> phase.row_shift) * kInputStride);
    return ceil_divide(bytes, kBoxAlignment) * kBoxAlignment;
  }

  template <int kTokenTiles>
  class Lane {
   public:
    Lane() = default;
    __device__ Lane(const StreamPhase& phase, const TokenTile&, int row_warp, int column_warp,
                    int lane)
        : lane_(lane),
          stride_(phase.x_rows == nullptr ? kInputStride : kCopiedStride),
          turned_(phase.x_rows == nullptr ? lane % 8 : 0),
          weights_((column_warp * phase.row_warps + row_warp) * kPieceBytes +
                   lane % 16 * (2 * kPieceColumns)),
          inputs_(column_warp * 8 * kTokenTiles * kInputStride + lane % 8 * stride_) {}

    __device__ void begin(int) {}
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
    static __device__ __forceinline__ int token(int quad, int i) { return 2 * quad + i; }

   private:
    int lane_, stride_;
    int turned_;  // the chunks of a box's row are permuted
    uint32_t weights_, inputs_;
  };
};

}  // namespace braid::cuda

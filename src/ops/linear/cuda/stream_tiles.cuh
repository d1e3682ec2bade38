#pragma once

// The tiles of quant/device_tiles.h for weight_stream.cuh: what a multiplying warp takes is a piece
// of a panel, and the pieces of a step come with one bulk copy a panel.

#include "ops/linear/cuda/tile_units.cuh"
#include "ops/linear/cuda/weight_stream.cuh"

namespace braid::cuda {

// A panel's scales, from its tail to those of the unit's rows: by a warp.
__device__ __forceinline__ void pass_panel_scales(uint32_t tail, float* of_rows, int lane) {
  if (lane % 4 != 0) return;
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(tail + lane / 4 * 16)
               : "memory");
  of_rows[lane / 4] = v.x;
  of_rows[lane / 4 + 8] = v.y;
  of_rows[lane / 4 + 16] = v.z;
  of_rows[lane / 4 + 24] = v.w;
}

// The outputs of rows with one scale each; codes are 64 times too small (tile_units.cuh).
struct ScaledOutputs : PlainOutputs {
  using PlainOutputs::PlainOutputs;
  __device__ float value(float sum, float, const float* of_rows, int row) const {
    return sum * (of_rows[row] * 64);
  }
};

template <FormatId kFormat>
struct TileSource {
  using Layout = TileLayout<kFormat>;
  using Sum = float;
  static constexpr int kTailBytes = Layout::kGroup == 0 ? kTileRows * 4 : 0, kTailWarps = 4;
  static constexpr bool kBlocks = true, kDeals = Layout::kGroup == 0;
  using Outputs = std::conditional_t<(kTailBytes > 0), ScaledOutputs, PlainOutputs>;
  static constexpr int kSets = 2;
  static constexpr int kRows = kTileRows, kPieceColumns = Piece<Layout>::kCols;
  static constexpr int kPieceUnits = Piece<Layout>::kUnits, kPieceBytes = Piece<Layout>::kBytes;
  // Inputs lie as [32 columns][tokens], or, where rows are copied singly, as rows a bit apart.
  static constexpr int kChunkBytes = kUnitColumns * 2, kRowGap = 64;

  static __host__ __device__ int step_columns(const StreamPhase& phase) {
    return (kSetWarps >> phase.row_shift) * kPieceColumns;
  }

  static __device__ __forceinline__ void bring(const StreamPhase& phase, int expert, int unit,
                                               int step, uint32_t to, uint32_t barrier) {
    bring_panels<kTailBytes>(phase, expert, unit, step, to, barrier);
  }

  template <int kTail>
  static __device__ __forceinline__ void bring_panels(const StreamPhase& phase, int expert,
                                                      int unit, int step, uint32_t to,
                                                      uint32_t barrier) {
    const int column_warps = kSetWarps >> phase.row_shift;
    const int panel_bytes = column_warps * kPieceBytes + kTail;  // in the slot
    const int first = step * column_warps * kPieceUnits;
    int bytes = min(column_warps * kPieceUnits, phase.tile_units - first) * Layout::kUnitBytes;
    if (step == phase.steps - 1) bytes += kTail;
    arrive_and_expect(barrier, bytes * phase.row_warps);
    const int panels = phase.row_warps >> (phase.gated ? 1 : 0);
    const int64_t offset = expert * phase.matrix_bytes + int64_t{first} * Layout::kUnitBytes;
    for (int i = 0; i < panels; ++i) {
      const int panel = min(unit * panels + i, phase.panels - 1);
      const int64_t at = offset + panel * phase.panel_bytes;
      stream_bytes(to + i * panel_bytes, phase.weights.tiles + at, bytes, barrier);
      if (phase.gated) {
        stream_bytes(to + (panels + i) * panel_bytes, phase.up.tiles + at, bytes, barrier);
      }
    }
  }

  template <int kTokens>
  static __device__ __forceinline__ void bring_inputs(const StreamPhase& phase,
                                                      const TokenTile& tokens, int step,
                                                      const uint16_t* row, uint32_t to,
                                                      uint32_t barrier) {
    const int lane = threadIdx.x % kWarp;
    const int columns = step_columns(phase), first = step * columns;
    if (phase.x_rows == nullptr) {
      if (lane != 0) return;
      arrive_and_expect(barrier, columns / kUnitColumns * phase.box_tokens * kChunkBytes);
      copy_box(to, &phase.inputs, 0, tokens.begin, first / kUnitColumns, barrier);
    } else {
      const int bytes = min(columns, phase.cols - first) * 2;
      if (lane == 0) arrive_and_expect(barrier, tokens.count * bytes);
      __syncwarp();
      if (lane < tokens.count) {
        copy_bytes(to + lane * (columns * 2 + kRowGap), row + first, bytes, barrier);
      }
    }
  }

  static int input_bytes(const StreamPhase& phase, int tokens) {
    const int columns = step_columns(phase);
    const int bytes = phase.x_rows != nullptr
                          ? tokens * (columns * 2 + kRowGap)
                          : columns / kUnitColumns * phase.box_tokens * kChunkBytes;
    return ceil_divide(bytes, 128) * 128;
  }

  template <int kTokenTiles>
  class Lane {
   public:
    __device__ Lane(const StreamPhase& phase, const TokenTile& tokens, int, int row_warp,
                    int column_warp, int lane)
        : lane_(lane),
          column_warp_(column_warp),
          column_warps_(kSetWarps >> phase.row_shift),
          tile_units_(phase.tile_units) {
      const bool boxed = phase.x_rows == nullptr;
      chunk_bytes_ = boxed ? phase.box_tokens * kChunkBytes : kChunkBytes;
      const int token_bytes = boxed ? kChunkBytes : step_columns(phase) * 2 + kRowGap;
      weights_ = (row_warp * column_warps_ + column_warp) * kPieceBytes + row_warp * kTailBytes;
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        inputs_[t] = column_warp * (kPieceColumns / kUnitColumns) * chunk_bytes_ +
                     min(8 * t + lane / 4, tokens.count - 1) * token_bytes + lane % 4 * 16;
      }
    }

    __device__ __forceinline__ void multiply(int step, uint32_t weights, uint32_t inputs,
                                             float (&sums)[2][kTokenTiles][4]) const {
      const int left = tile_units_ - (step * column_warps_ + column_warp_) * kPieceUnits;
      const unsigned char* x[kTokenTiles];
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) x[t] = shared_pointer(inputs + inputs_[t]);
#pragma unroll
      for (int u = 0; u < kPieceUnits; ++u) {
        if (u >= left) break;
        UnitCodes<Layout> unit;
        unit.load(shared_pointer(weights + weights_ + u * Layout::kUnitBytes), lane_);
        multiply_unit(unit, x, u * (Layout::kUnitCols / kUnitColumns) * chunk_bytes_, chunk_bytes_,
                      sums);
      }
    }

    __device__ void pass_scales(const StreamPhase& phase, uint32_t weights, float* of_rows) const {
      if (column_warp_ > 0) return;
      const int units = tile_units_ - (phase.steps - 1) * column_warps_ * kPieceUnits;
      pass_panel_scales(weights + weights_ + units * Layout::kUnitBytes, of_rows, lane_);
    }

    // Rows with one scale are scaled where their sums are added up.
    __device__ void finish(float (&sums)[2][kTokenTiles][4]) const {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            if (kTailBytes == 0) sums[half][t][k] *= 64;
          }
        }
      }
    }

   protected:
    static __device__ __forceinline__ const unsigned char* shared_pointer(uint32_t address) {
      return static_cast<const unsigned char*>(__cvta_shared_to_generic(address));
    }

    int lane_, column_warp_, column_warps_, tile_units_;
    int chunk_bytes_;
    uint32_t weights_, inputs_[kTokenTiles];
  };
};

template <FormatId kFormat>
void stream_tiles(Stream& stream, StreamPlan& plan) {
  if (plan.token_tiles == 1) return launch_stream<TileSource<kFormat>, 1>(stream, plan);
  launch_stream<TileSource<kFormat>, 2>(stream, plan);
}

}  // namespace braid::cuda

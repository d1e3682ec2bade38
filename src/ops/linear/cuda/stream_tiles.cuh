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
  // 4-bit tiles were slower with it (bench/cuda/README.md).
  static constexpr bool kLooksUpOnce = Layout::kGroup == 0;
  using Outputs = std::conditional_t<(kTailBytes > 0), ScaledOutputs, PlainOutputs>;
  static constexpr int kSets = 2;
  static constexpr int kRows = kTileRows, kPieceColumns = Piece<Layout>::kCols;
  static constexpr int kPieceUnits = Piece<Layout>::kUnits, kPieceBytes = Piece<Layout>::kBytes;
  // Inputs lie as [32 columns][tokens], or, where rows are copied singly, as rows a bit apart.
  static constexpr int kChunkBytes = kUnitColumns * 2, kRowGap = 64;

  static __host__ __device__ int step_columns(const StreamPhase& phase) {
    return (kSetWarps >> phase.row_shift) * kPieceColumns;
  }

  class Weights {
   public:
    __device__ Weights(const StreamPhase& phase, int expert, int unit, int step) {
      const int column_warps = kSetWarps >> phase.row_shift;
      const int step_units = column_warps * kPieceUnits;
      row_warps_ = phase.row_warps;
      step_bytes_ = step_units * Layout::kUnitBytes;
      last_bytes_ =
          (phase.tile_units - (phase.steps - 1) * step_units) * Layout::kUnitBytes + kTailBytes;
      const int panels = row_warps_ >> (phase.gated ? 1 : 0);
#pragma unroll
      for (int i = 0; i < kMostPanels; ++i) {
        const bool up = i >= panels;
        const int panel = min(unit * panels + (up ? i - panels : i), phase.panels - 1);
        from_[i] = (up && phase.gated ? phase.up.tiles : phase.weights.tiles) +
                   expert * phase.matrix_bytes + panel * phase.panel_bytes +
                   int64_t{step} * step_bytes_;
      }
    }
    __device__ __forceinline__ void bring(bool last, uint32_t to, uint32_t barrier) {
      const int bytes = last ? last_bytes_ : step_bytes_;
      arrive_and_expect(barrier, bytes * row_warps_);
#pragma unroll
      for (int i = 0; i < kMostPanels; ++i) {
        if (i >= row_warps_) break;
        stream_bytes(to + i * (step_bytes_ + kTailBytes), from_[i], bytes, barrier);
        from_[i] += step_bytes_;
      }
    }

   private:
    static constexpr int kMostPanels = 4;  // of a unit, those of gate and up together
    int row_warps_, step_bytes_, last_bytes_;
    const uint8_t* from_[kMostPanels];
  };

  template <int kTokens>
  class Inputs {
   public:
    __device__ Inputs(const StreamPhase& phase, const TokenTile& tokens, const uint16_t* row)
        : map_(&phase.inputs),
          row_(row),
          columns_(step_columns(phase)),
          cols_(phase.cols),
          begin_(tokens.begin),
          count_(tokens.count),
          bytes_(phase.x_rows == nullptr ? columns_ / kUnitColumns * phase.box_tokens * kChunkBytes
                                         : 0) {}
    __device__ __forceinline__ void bring(int step, uint32_t to, uint32_t barrier) const {
      const int lane = threadIdx.x % kWarp;
      const int first = step * columns_;
      if (bytes_ > 0) {
        if (lane != 0) return;
        arrive_and_expect(barrier, bytes_);
        copy_box(to, map_, 0, begin_, first / kUnitColumns, barrier);
      } else {
        const int bytes = min(columns_, cols_ - first) * 2;
        if (lane == 0) arrive_and_expect(barrier, count_ * bytes);
        __syncwarp();
        if (lane < count_) {
          copy_bytes(to + lane * (columns_ * 2 + kRowGap), row_ + first, bytes, barrier);
        }
      }
    }

   private:
    const CUtensorMap* map_;
    const uint16_t* row_;  // of this lane's token, where rows are copied
    int columns_, cols_, begin_, count_, bytes_;
  };

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

#pragma once

// The tiles of quant/device_tiles.h for weight_stream.cuh: what a multiplying warp takes is a piece
// of a panel, and the pieces of a step come with one bulk copy a panel.

#include "ops/cuda/tensor_map.h"
#include "ops/linear/cuda/launch_stream.cuh"
#include "ops/linear/cuda/tile_units.cuh"

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

// Outputs of sums that are 64 times too small (tile_units.cuh), of rows with one scale each or of
// sums that have been scaled.
template <bool kRowScales>
struct TileOutputs : PlainOutputs {
  using PlainOutputs::PlainOutputs;
  __device__ float value(float sum, float, const float* of_rows, int row) const {
    return sum * (kRowScales ? of_rows[row] * 64 : 64);
  }
};

template <FormatId kFormat, int kSets_ = 2>
struct TileSource {
  using Layout = TileLayout<kFormat>;
  using Sum = float;
  static constexpr int kTailBytes = Layout::kGroup == 0 ? kTileRows * 4 : 0, kTailWarps = 4;
  static constexpr bool kBlocks = true, kDeals = Layout::kGroup == 0;
  using Outputs = TileOutputs<(kTailBytes > 0)>;
  static constexpr int kSets = kSets_, kBoundThreads = 0;
  static constexpr bool kManyRegisters = Layout::kBits == 4;
  static constexpr int kRows = kTileRows, kPieceColumns = Piece<Layout>::kCols;
  static constexpr int kPieceUnits = Piece<Layout>::kUnits, kPieceBytes = Piece<Layout>::kBytes;
  // Inputs lie as boxes of [64 columns][tokens] (make_chunk_map()), or, where rows are copied
  // singly, as rows a bit apart. Lanes 4 i … 4 i + 3 read rows i / 2, and four further if i is odd:
  // so eight of them find all banks either way.
  static constexpr int kBoxColumns = kChunkColumns, kBoxRowBytes = kBoxColumns * 2, kRowGap = 16;
  static constexpr int kPieceBoxes = kPieceColumns / kBoxColumns;
  static constexpr int kRowPad = 8;

  static __host__ __device__ int step_columns(const StreamPhase& phase) {
    return (kSetWarps >> phase.row_shift) * kPieceColumns;
  }

  // The last step has what is left of a panel, and its scales.
  struct StepBytes {
    __device__ explicit StepBytes(const StreamPhase& phase)
        : most((kSetWarps >> phase.row_shift) * kPieceBytes),
          last(phase.tile_units * Layout::kUnitBytes - (phase.steps - 1) * most + kTailBytes) {}
    int most, last;
  };

  // Panels of eight bits a code: each one's address is kept.
  class KeptPanels {
   public:
    __device__ KeptPanels(const StreamPhase& phase, int expert, int unit)
        : row_warps_(phase.row_warps), bytes_(phase) {
      const int panels = row_warps_ >> (phase.gated ? 1 : 0);
#pragma unroll
      for (int i = 0; i < kMostPanels; ++i) {
        const bool up = i >= panels;
        const int panel = min(unit * panels + (up ? i - panels : i), phase.panels - 1);
        from_[i] = (up && phase.gated ? phase.up.tiles : phase.weights.tiles) +
                   expert * phase.matrix_bytes + panel * phase.panel_bytes;
      }
    }
    __device__ __forceinline__ void bring(bool last, uint32_t to, uint32_t barrier) {
      const int bytes = last ? bytes_.last : bytes_.most;
      arrive_and_expect(barrier, bytes * row_warps_);
#pragma unroll
      for (int i = 0; i < kMostPanels; ++i) {
        if (i >= row_warps_) break;
        stream_bytes(to + i * (bytes_.most + kTailBytes), from_[i], bytes, barrier);
        from_[i] += bytes_.most;
      }
    }

   private:
    static constexpr int kMostPanels = 4;  // of a unit, those of gate and up together
    int row_warps_;
    StepBytes bytes_;
    const uint8_t* from_[kMostPanels];
  };

  // Of four bits: of few panels, few instructions before a unit's first copy.
  class PanelsInTurn {
   public:
    __device__ PanelsInTurn(const StreamPhase& phase, int expert, int unit)
        : gated_(phase.gated),
          row_warps_(phase.row_warps),
          panels_(phase.row_warps >> (phase.gated ? 1 : 0)),
          last_panel_(phase.panels - 1 - unit * panels_),
          bytes_(phase),
          panel_bytes_(phase.panel_bytes) {
      const int64_t offset = expert * phase.matrix_bytes + unit * panels_ * panel_bytes_;
      from_ = phase.weights.tiles + offset;
      up_ = phase.up.tiles + offset;
    }
    __device__ __forceinline__ void bring(bool last, uint32_t to, uint32_t barrier) {
      const int bytes = last ? bytes_.last : bytes_.most;
      const int in_slot = bytes_.most + kTailBytes;  // of a panel
      arrive_and_expect(barrier, bytes * row_warps_);
#pragma unroll 1
      for (int i = 0; i < panels_; ++i) {
        const int64_t at = min(i, last_panel_) * panel_bytes_;
        stream_bytes(to + i * in_slot, from_ + at, bytes, barrier);
        if (gated_) stream_bytes(to + (panels_ + i) * in_slot, up_ + at, bytes, barrier);
      }
      from_ += bytes_.most;
      up_ += bytes_.most;
    }

   private:
    bool gated_;
    int row_warps_, panels_, last_panel_;
    StepBytes bytes_;
    int64_t panel_bytes_;
    const uint8_t *from_, *up_;
  };

  using Weights = std::conditional_t<Layout::kBits == 4, PanelsInTurn, KeptPanels>;

  template <int>
  class Inputs {
   public:
    __device__ Inputs(const StreamPhase& phase, const TokenTile& tokens, const uint16_t* row)
        : map_(computed_once(&phase.inputs)),
          boxed_(phase.x_rows == nullptr),
          cols_(phase.cols),
          columns_(computed_once(step_columns(phase))),
          begin_(computed_once(tokens.begin)),
          num_rows_(computed_once(boxed_ ? phase.box_tokens : tokens.count)),
          row_(row) {}
    __device__ __forceinline__ void bring(int step, uint32_t to, uint32_t barrier) const {
      const int lane = threadIdx.x % kWarp, first = step * columns_;
      if (boxed_) {
        if (lane != 0) return;
        arrive_and_expect(barrier, columns_ * 2 * num_rows_);
        copy_box(to, map_, 0, begin_, first / kBoxColumns, barrier);
      } else {
        const int bytes = min(columns_, cols_ - first) * 2;
        if (lane == 0) arrive_and_expect(barrier, num_rows_ * bytes);
        __syncwarp();
        if (lane < num_rows_) {
          copy_bytes(to + lane * (columns_ * 2 + kRowGap), row_ + first, bytes, barrier);
        }
      }
    }

   private:
    const CUtensorMap* map_;
    bool boxed_;
    int cols_, columns_, begin_, num_rows_;
    const uint16_t* row_;  // of this lane's token, where rows are copied
  };

  static int input_bytes(const StreamPhase& phase, int tokens) {
    const int columns = step_columns(phase);
    // Lanes of tokens that a box does not have read on behind it.
    const int bytes =
        phase.x_rows != nullptr
            ? tokens * (columns * 2 + kRowGap)
            : (columns / kBoxColumns * phase.box_tokens + tokens - phase.box_tokens) * kBoxRowBytes;
    return ceil_divide(bytes, kBoxAlignment) * kBoxAlignment;
  }

  template <int kTokenTiles>
  class Lane {
   public:
    Lane() = default;
    __device__ Lane(const StreamPhase& phase, const TokenTile& tokens, int row_warp,
                    int column_warp, int lane)
        : lane_(lane),
          units_(phase.tile_units - column_warp * kPieceUnits),
          step_units_((kSetWarps >> phase.row_shift) * kPieceUnits) {
      const int column_warps = kSetWarps >> phase.row_shift;
      codes_ = computed_once((row_warp * column_warps + column_warp) * kPieceBytes +
                             row_warp * kTailBytes + lane * 16);
      codes_to_scales_ =
          computed_once(Layout::kCodeBytes + UnitCodes<Layout>::scales_of(lane) - lane * 16);
      const int quad = lane % 4, row = min(token(lane / 8, lane / 4 % 2), tokens.count - 1);
      const bool boxed = phase.x_rows == nullptr;
      const int row_bytes = boxed ? kBoxRowBytes : step_columns(phase) * 2 + kRowGap;
      eight_tokens_ = 8 * row_bytes;
#pragma unroll
      for (int k = 0; k < kPieceBoxes; ++k) {
        const int box = column_warp * kPieceBoxes + k;
        const int at = boxed ? box * phase.box_tokens + row : row;  // row of the slot
        const int turned = boxed ? at % 8 : 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          inputs_[k][half] = computed_once(at * row_bytes + (boxed ? 0 : box * kBoxRowBytes) +
                                           ((half * 4 + quad) ^ turned) * 16);
        }
      }
    }
    static __device__ __forceinline__ int token(int quad, int i) { return quad + 4 * i; }

    __device__ void begin(int step) { left_ = units_ - step * step_units_; }

    __device__ __forceinline__ void multiply(int, uint32_t weights, uint32_t inputs,
                                             float (&sums)[2][kTokenTiles][4]) {
      const unsigned char* codes = shared_pointer(weights + codes_);
      const unsigned char* scales = codes + codes_to_scales_;
#pragma unroll
      for (int u = 0; u < kPieceUnits; ++u) {
        if (u >= left_) break;
        UnitCodes<Layout> unit;
        unit.load(codes + u * Layout::kUnitBytes, scales + u * Layout::kUnitBytes, lane_);
        const auto inputs_of = [&](int t, int chunk) {
          const int of_piece = u * (Layout::kUnitCols / kUnitColumns) + chunk;
          return *reinterpret_cast<const uint4*>(
              shared_pointer(inputs + inputs_[of_piece / 2][of_piece % 2]) + t * eight_tokens_);
        };
        multiply_unit(unit, inputs_of, sums);
      }
      left_ -= kSets * step_units_;
    }

    // Of the step that has been multiplied last.
    __device__ void pass_scales(const StreamPhase& phase, uint32_t weights, float* of_rows) const {
      if (units_ < phase.tile_units) return;  // others' columns
      const int units = left_ + kSets * step_units_;
      pass_panel_scales(weights + codes_ - lane_ * 16 + units * Layout::kUnitBytes, of_rows, lane_);
    }

   protected:
    static __device__ __forceinline__ const unsigned char* shared_pointer(uint32_t address) {
      return static_cast<const unsigned char*>(__cvta_shared_to_generic(address));
    }

    int lane_, units_, step_units_, left_;
    int eight_tokens_;  // bytes from a token to the eighth after it
    uint32_t codes_, codes_to_scales_, inputs_[kPieceBoxes][2];
  };
};

// Of 4-bit tiles, with so few threads and registers that a block of attention finds room beside it:
// for matrices of which a block has one unit, so that its weights are there when the inputs come.
template <FormatId kFormat>
struct SlimTileSource : TileSource<kFormat, 1> {
  static constexpr bool kBlocks = false, kDeals = false;
  static constexpr int kBoundThreads = 640;
};

template <FormatId kFormat>
void stream_tiles(Stream& stream, StreamPlan& plan) {
  if constexpr (TileLayout<kFormat>::kBits == 4) {
    if (plan.slim) {
      if (plan.token_tiles == 1) return launch_stream<SlimTileSource<kFormat>, 1>(stream, plan);
      return launch_stream<SlimTileSource<kFormat>, 2>(stream, plan);
    }
  }
  if (plan.token_tiles == 1) return launch_stream<TileSource<kFormat>, 1>(stream, plan);
  launch_stream<TileSource<kFormat>, 2>(stream, plan);
}

}  // namespace braid::cuda

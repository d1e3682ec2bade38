#pragma once

// Tiles of w8c with inputs of int8 codes (int8_products.h) for weight_stream.cuh: exact sums of
// integers, scaled once.

#include "ops/cuda/int8.cuh"
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

// Inputs come as boxes of 128 codes a row, or, where rows are copied singly or made here, as rows
// of a step's columns and 16 bytes, so that eight tokens' pieces lie in different banks.
struct CodeSource : TileSource<FormatId::kW8C> {
  using Sum = int32_t;
  static constexpr bool kCodes = true;
  static constexpr int kSets = 1;  // few instructions: eight warps keep up
  static constexpr int kInputWarps = 3;
  static constexpr int kBoxColumns = 128, kRowGap = 16;
  static constexpr int kVectors = 4;  // of 128 columns that a warp has at a time, of each token

  static __host__ __device__ bool boxed(const StreamPhase& phase) {
    return phase.x_rows == nullptr && phase.awaits < 0;
  }

  template <int kTokens>
  static __device__ __forceinline__ void bring_inputs(const StreamPhase& phase,
                                                      const TokenTile& tokens, int step,
                                                      const uint16_t* row, uint32_t to,
                                                      uint32_t barrier) {
    const int lane = threadIdx.x % kWarp;
    const int columns = step_columns(phase), boxes = columns / kBoxColumns;
    const int bytes = min(columns, phase.cols - step * columns);
    if (lane == 0) {
      arrive_and_expect(barrier, boxed(phase) ? kTokens * columns : tokens.count * bytes);
    }
    __syncwarp();
    if (boxed(phase)) {
      if (lane < boxes) {
        copy_box(to + lane * kTokens * kBoxColumns, &phase.inputs,
                 (step * boxes + lane) * (kBoxColumns / 2), tokens.begin, barrier);
      }
    } else if (lane < tokens.count) {
      copy_bytes(to + lane * (columns + kRowGap), row + step * (columns / 2), bytes, barrier);
    }
  }

  // Of the activations of all columns, by a warp: place(step) is where a step's inputs belong, once
  // ready() has been called.
  template <typename Place, typename Ready>
  static __device__ __forceinline__ void make_codes(const StreamPhase& phase,
                                                    const TokenTile& tokens, const Place& place,
                                                    const Ready& ready) {
    constexpr int kTogether = 3, kColumns = kVectors * 4 * kWarp;
    const int lane = threadIdx.x % kWarp;
    const int step_shift = 9 - phase.row_shift;  // of step_columns()
    const int row_bytes = step_columns(phase) + kRowGap;
    float4 v[kTogether][kVectors];
    const auto load = [&](int token, int first, float4(&to)[kVectors]) {
      const float* row = phase.activated + (tokens.begin + token) * phase.activated_stride;
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        const int column = first + 4 * (j * kWarp + lane);
        to[j] = column < phase.cols ? __ldcg(reinterpret_cast<const float4*>(row + column))
                                    : float4{0, 0, 0, 0};
      }
    };
#pragma unroll 1
    for (int first_token = 0; first_token < tokens.count; first_token += kTogether) {
      int of[kTogether];
      uint32_t largest[kTogether] = {};
#pragma unroll
      for (int k = 0; k < kTogether; ++k) of[k] = min(first_token + k, tokens.count - 1);
#pragma unroll 1
      for (int first = 0; first < phase.cols; first += kColumns) {
#pragma unroll
        for (int k = 0; k < kTogether; ++k) load(of[k], first, v[k]);
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
#pragma unroll
          for (int j = 0; j < kVectors; ++j) largest[k] = max(largest[k], magnitude(v[k][j]));
        }
      }
      if (first_token == 0) ready();
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const Int8Scale scale = int8_scale(warp_max(largest[k]));
        if (lane == 0) phase.x_scales[tokens.begin + of[k]] = scale.scale;
#pragma unroll 1
        for (int first = 0; first < phase.cols; first += kColumns) {
          if (phase.cols > kColumns) load(of[k], first, v[k]);
#pragma unroll
          for (int j = 0; j < kVectors; ++j) {
            const int column = first + 4 * (j * kWarp + lane);
            if (column >= phase.cols) continue;
            const int in_step = column & ((1 << step_shift) - 1);
            const uint32_t at = place(column >> step_shift) + of[k] * row_bytes +
                                in_step / 32 * 32 + in_step % 8 * 4 + in_step % 32 / 8 * 4;
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(at),
                         "r"(int8_codes(v[k][j], scale.inverse))
                         : "memory");
          }
        }
      }
    }
  }

  static int input_bytes(const StreamPhase& phase, int tokens) {
    const int bytes = tokens * (step_columns(phase) + (boxed(phase) ? 0 : kRowGap));
    return ceil_divide(bytes, kBoxAlignment) * kBoxAlignment;
  }

  template <int kTokenTiles>
  class Lane {
   public:
    __device__ Lane(const StreamPhase& phase, const TokenTile& tokens, int, int row_warp,
                    int column_warp, int lane)
        : count_(tokens.count),
          first_unit_(column_warp * kPieceUnits),
          step_units_((kSetWarps >> phase.row_shift) * kPieceUnits),
          tile_units_(phase.tile_units),
          stride_(boxed(phase) ? kBoxColumns : step_columns(phase) + kRowGap),
          weights_((row_warp * (kSetWarps >> phase.row_shift) + column_warp) * kPieceBytes +
                   lane * 16) {
      const int row = lane % 8, piece = lane / 8;  // of the matrices that a lane points to
      constexpr int kBoxPieces = kBoxColumns / kPieceColumns;
      inputs_ = row * stride_;
      if (boxed(phase)) {
        inputs_ += column_warp / kBoxPieces * 8 * kTokenTiles * kBoxColumns +
                   ((column_warp % kBoxPieces * 4 + piece) ^ row) * 16;
      } else {
        inputs_ += column_warp * kPieceColumns + piece * 16;
      }
    }

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
        load_matrices(b, inputs + inputs_ + 8 * t * stride_);
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
    __device__ void finish(int32_t (&)[2][kTokenTiles][4]) const {}

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

    int count_, first_unit_, step_units_, tile_units_, stride_;
    uint32_t weights_, inputs_;
  };

  // Scales of the one row, or gate and up row, of a thread; a lane has the scale of one token.
  class Outputs {
   public:
    __device__ Outputs(const StreamPhase& phase, const TokenTile& tokens, int unit, int thread) {
      const int row = unit * phase.unit_rows + (thread & (phase.unit_rows - 1));
      const int64_t at = tokens.expert * phase.matrix_bytes +
                         min(row / kTileRows, phase.panels - 1) * phase.panel_bytes +
                         int64_t{phase.tile_units} * Layout::kUnitBytes +
                         (row % 8 * 4 + row % kTileRows / 8) * 4;
      row_scale_ = __ldg(reinterpret_cast<const float*>(phase.weights.tiles + at));
      up_scale_ = phase.gated ? __ldg(reinterpret_cast<const float*>(phase.up.tiles + at)) : 0;
    }
    __device__ void find_inputs(const StreamPhase& phase, const TokenTile& tokens) {
      const int lane = threadIdx.x % kWarp;
      if (lane >= tokens.count) return;
      int row = tokens.begin + lane;
      if (phase.x_rows != nullptr) row = __ldcg(phase.x_rows + row);
      token_scale_ = __ldcg(phase.x_scales + row);
    }
    __device__ float of_token(int token) const {
      return __shfl_sync(0xffffffffu, token_scale_, token);
    }
    // As the CPU scales sums.
    __device__ float value(int32_t sum, float of_token, bool up) const {
      return __fmul_rn(static_cast<float>(sum), __fmul_rn(of_token, up ? up_scale_ : row_scale_));
    }

   private:
    float row_scale_, up_scale_, token_scale_ = 0;
  };
};

}  // namespace braid::cuda

#pragma once

// The arithmetic of quantize/rounding.cc for kernels, operation by operation, so that both give the
// same bits.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/launch.cuh"
#include "quantize/cuda/device_gptq.h"

namespace braid::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kWarps = 8;           // of a block that shares nothing
inline constexpr int kRoundingWarps = 16;  // of one that shares a square of a matrix: a row each
inline constexpr int kColumns = static_cast<int>(kRoundedColumns);
inline constexpr int kPerLane = kColumns / kWarp;

__host__ __device__ inline int columns_of(const DeviceRows& rows, int64_t group) {
  const int64_t left = rows.cols - group * rows.grid.group;
  return static_cast<int>(rows.grid.group < left ? rows.grid.group : left);
}

// [kColumns][kColumns]: of `from` the first `count` rows and columns, then zeros. For the whole
// block, which has to synchronise.
__device__ __forceinline__ void load_square(const float* from, int64_t stride, int count,
                                            float* shared) {
  for (int i = threadIdx.x; i < kColumns * kColumns; i += blockDim.x) {
    const int r = i / kColumns, c = i % kColumns;
    shared[i] = r < count && c < count ? from[r * stride + c] : 0;
  }
}

struct WeightRange {
  float low, high;  // both sides of 0
  float least, greatest;
};

__device__ __forceinline__ float stored_scale(const DeviceGrid& grid, float scale) {
  if (grid.scale_type == FormatId::kBF16) return __bfloat162float(__float2bfloat16_rn(scale));
  if (grid.scale_type == FormatId::kF16) return __half2float(__float2half_rn(scale));
  return scale;
}

__device__ __forceinline__ int nearest_code(float steps, int low, int high) {
  if (!(steps > static_cast<float>(low))) return low;
  if (steps >= static_cast<float>(high)) return high;
  return static_cast<int>(rintf(steps));
}

__device__ __forceinline__ GroupScale scale_for(const DeviceGrid& grid, const WeightRange& range,
                                                float factor) {
  GroupScale result;
  const float levels = static_cast<float>(grid.high - grid.low);
  if (grid.zero == RoundingGrid::Zero::kMiddle) {
    const float peak = fmaxf(-range.low, range.high);
    result.scale = stored_scale(grid, __fmul_rn(factor, __fdiv_rn(peak, levels / 2)));
    if (grid.signed_scale && range.high >= -range.low) result.scale = -result.scale;
    result.zero = grid.middle;
  } else if (grid.zero == RoundingGrid::Zero::kChosen) {
    const float width = __fsub_rn(range.high, range.low);
    result.scale = stored_scale(grid, __fmul_rn(factor, __fdiv_rn(width, levels)));
    result.zero = result.scale > 0
                      ? nearest_code(__fdiv_rn(__fmul_rn(-range.low, factor), result.scale),
                                     grid.least_zero, grid.high)
                      : grid.least_zero;
  } else {
    const float width = __fsub_rn(range.greatest, range.least);
    result.scale = stored_scale(grid, __fmul_rn(factor, __fdiv_rn(width, levels)));
    result.min =
        stored_scale(grid, __fadd_rn(range.least, __fmul_rn(__fsub_rn(1, factor) / 2, width)));
  }
  return result;
}

__device__ __forceinline__ float value_at(const GroupScale& scale, int code) {
  return __fadd_rn(__fmul_rn(scale.scale, static_cast<float>(code - scale.zero)), scale.min);
}

__device__ __forceinline__ int code_at(const DeviceGrid& grid, const GroupScale& scale, float w) {
  if (scale.scale == 0) return grid.zero == RoundingGrid::Zero::kMin ? 0 : scale.zero;
  const float steps = __fdiv_rn(__fsub_rn(w, scale.min), scale.scale);
  if (grid.middle == kByteMiddle) {
    return nearest_code(steps, grid.low - scale.zero, grid.high - scale.zero) + scale.zero;
  }
  return nearest_code(__fadd_rn(steps, static_cast<float>(scale.zero)), grid.low, grid.high);
}

__device__ __forceinline__ float scale_error(const DeviceGrid& grid, const GroupScale& scale,
                                             const float* w, const float* importance, int count) {
  const float inverse = scale.scale != 0 ? __fdiv_rn(1, scale.scale) : 0;
  const float zero = static_cast<float>(scale.zero);
  const float offset = __fsub_rn(zero, __fmul_rn(scale.min, inverse));
  const float low = static_cast<float>(grid.low), high = static_cast<float>(grid.high);
  float sum = 0;
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    constexpr float kWhole = 12582912.0f;
    const float steps = fminf(fmaxf(__fadd_rn(__fmul_rn(w[i], inverse), offset), low), high);
    const float code = __fsub_rn(__fadd_rn(steps, kWhole), kWhole);
    const float e =
        __fsub_rn(w[i], __fadd_rn(__fmul_rn(scale.scale, __fsub_rn(code, zero)), scale.min));
    const float weight = importance != nullptr ? importance[i] : 1.0f;
    sum = __fadd_rn(sum, __fmul_rn(__fmul_rn(weight, e), e));
  }
  return sum;
}

// For the whole warp: each lane tries one of the scales of a search.
__device__ __forceinline__ GroupScale fit_group(const DeviceGrid& grid, const float* w,
                                                const float* importance, int count, bool search) {
  static_assert(kNumScaleFactors < kWarp);
  const int lane = threadIdx.x % kWarp;
  WeightRange range{0, 0, w[0], w[0]};
  for (int i = lane; i < count; i += kWarp) {
    range.least = fminf(range.least, w[i]);
    range.greatest = fmaxf(range.greatest, w[i]);
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    range.least = fminf(range.least, __shfl_xor_sync(kAllLanes, range.least, offset));
    range.greatest = fmaxf(range.greatest, __shfl_xor_sync(kAllLanes, range.greatest, offset));
  }
  range.low = fminf(0, range.least);
  range.high = fmaxf(0, range.greatest);
  const bool plain = lane >= kNumScaleFactors;
  const float factor =
      plain ? 1
            : __fsub_rn(kLargestScaleFactor, __fmul_rn(kScaleFactorStep, static_cast<float>(lane)));
  GroupScale own = scale_for(grid, range, factor);
  int best = kWarp - 1;
  if (search && __shfl_sync(kAllLanes, own.scale, kWarp - 1) != 0) {
    // Of equals the one that lets the range fit, then the first.
    float least = scale_error(grid, own, w, importance, count);
    int rank = plain ? 0 : lane + 1;
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, least, offset);
      const int other_rank = __shfl_xor_sync(kAllLanes, rank, offset);
      if (other < least || (other == least && other_rank < rank)) {
        least = other;
        rank = other_rank;
      }
    }
    best = rank == 0 ? kWarp - 1 : rank - 1;
  }
  own.scale = __shfl_sync(kAllLanes, own.scale, best);
  own.min = __shfl_sync(kAllLanes, own.min, best);
  own.zero = __shfl_sync(kAllLanes, own.zero, best);
  return own;
}

}  // namespace braid::cuda

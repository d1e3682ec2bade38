#pragma once

// One head of one token on its way into attention, in the registers of a warp.

#include <cuda_bf16.h>

#include "ops/cuda/int8.cuh"
#include "ops/cuda/row_vectors.cuh"
#include "ops/fused/cuda/row_math.cuh"
#include "ops/norm/cuda/rms_norm.cuh"

namespace braid::cuda {

__device__ __forceinline__ void put(float* to, float4 v) { *reinterpret_cast<float4*>(to) = v; }
__device__ __forceinline__ void put(__nv_bfloat16* to, float4 v) {
  __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
  *reinterpret_cast<uint2*>(to) = *reinterpret_cast<uint2*>(pairs);
}

// What are integers already.
__device__ __forceinline__ void put(int8_t* to, float4 codes) {
  *reinterpret_cast<uint32_t*>(to) = int8_codes(codes, 1);
}

// Read, normed, turned. Element 4·(32·j + lane) + n is v[j][n].
template <int kDim>
struct Head {
  static constexpr int kVectors = kDim / (4 * kWarp);
  static constexpr int kKept = kVectors > 0 ? kVectors : 1;
  static_assert(kDim % 128 == 0 || kDim == 64);

  float4 v[kKept];

  static __device__ int element(int j, int lane) { return 4 * (j * kWarp + lane); }

  __device__ void load(const float* row, int lane) {
#pragma unroll
    for (int j = 0; j < kKept; ++j) v[j] = load4<true>(row, element(j, lane), kDim);
  }
  // A row of weights, for norm(); cosines or sines, for turn_in_lane().
  struct Row {
    float4 v[kKept];
    // Of a null row: ones.
    __device__ void load(const float* row, int width, int lane) {
#pragma unroll
      for (int j = 0; j < kKept; ++j) {
        v[j] = row != nullptr ? load4<true>(row, element(j, lane), width) : float4{1, 1, 1, 1};
      }
    }
  };
  // What a norm multiplies by, apart from its weight.
  __device__ float norm_factor(float epsilon) const {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kKept; ++j) sum += sum_of_squares(v[j]);
    return inverse_rms(warp_sum(sum), kDim, epsilon);
  }
  // Without a weight.
  __device__ void norm(float epsilon) {
    const float factor = norm_factor(epsilon);
#pragma unroll
    for (int j = 0; j < kKept; ++j) v[j] = times(v[j], factor);
  }
  __device__ void norm(const Row& weight, float epsilon) {
    norm(epsilon);
#pragma unroll
    for (int j = 0; j < kKept; ++j) v[j] = times(v[j], weight.v[j]);
  }
  // weight: a row of kDim, or null.
  __device__ void norm(const float* weight, float epsilon, int lane) {
    const float factor = norm_factor(epsilon);
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      v[j] = times(v[j], factor);
      if (weight != nullptr) v[j] = times(v[j], load4<true>(weight, element(j, lane), kDim));
    }
  }
  __device__ void multiply(const float* row, int lane) {
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      v[j] = times(v[j], load4<true>(row, element(j, lane), kDim));
    }
  }
  // Pairs are half a head apart, so that a lane has both of each; a multiple of four pairs.
  __device__ void turn_in_lane(const Row& cos, const Row& sin, int pairs, int lane) {
    constexpr int kHalf = kKept / 2;
    const auto turn_pair = [](float& a, float& b, float c, float s) {
      const float turned = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
      b = __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s));
      a = turned;
    };
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
      if (element(j, lane) >= pairs) continue;
      turn_pair(v[j].x, v[j + kHalf].x, cos.v[j].x, sin.v[j].x);
      turn_pair(v[j].y, v[j + kHalf].y, cos.v[j].y, sin.v[j].y);
      turn_pair(v[j].z, v[j + kHalf].z, cos.v[j].z, sin.v[j].z);
      turn_pair(v[j].w, v[j + kHalf].w, cos.v[j].w, sin.v[j].w);
    }
  }
  // scratch: kDim floats of the warp's own.
  __device__ void turn(const float* cos, const float* sin, int pairs, int distance, float* scratch,
                       int lane) {
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      if (element(j, lane) < kDim) put(scratch + element(j, lane), v[j]);
    }
    __syncwarp();
    for (int i = lane; i < pairs; i += kWarp) {
      const float a = scratch[i], b = scratch[i + distance], c = cos[i], s = sin[i];
      scratch[i] = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
      scratch[i + distance] = __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s));
    }
    __syncwarp();
    load(scratch, lane);
  }
  // The same by vectors: pairs and distance are multiples of 4, rows of cosines and sines aligned.
  __device__ void turn_vectors(const float* cos, const float* sin, int pairs, int distance,
                               float* scratch, int lane) {
    __syncwarp();
    store(scratch, lane);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      const int i = element(j, lane);
      const bool first = i < pairs;
      if (!first && (i < distance || i >= distance + pairs)) continue;
      const int at = first ? i : i - distance;
      const float4 c = load4<true>(cos, at, pairs), s = load4<true>(sin, at, pairs);
      const float4 other = *reinterpret_cast<const float4*>(scratch + (first ? i + distance : at));
      const auto turn_one = [first](float& x, float y, float c, float s) {
        const float by = __fmul_rn(y, s);
        x = __fadd_rn(__fmul_rn(x, c), first ? -by : by);
      };
      turn_one(v[j].x, other.x, c.x, s.x);
      turn_one(v[j].y, other.y, c.y, s.y);
      turn_one(v[j].z, other.z, c.z, s.z);
      turn_one(v[j].w, other.w, c.w, s.w);
    }
  }
  // Makes codes of int8 of the elements; returns their scale (int8_scale()).
  __device__ float to_codes(Int8Scale fixed) {
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < kKept; ++j) largest = max(largest, magnitude(v[j]));
    const Int8Scale scale = int8_scale(warp_max(largest), fixed);
    const auto code = [&](float x) {
      return static_cast<float>(clamped_int8_code(x, scale.inverse));
    };
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      v[j] = {code(v[j].x), code(v[j].y), code(v[j].z), code(v[j].w)};
    }
    return scale.scale;
  }
  template <typename T>
  __device__ void store(T* row, int lane) const {
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      if (element(j, lane) < kDim) put(row + element(j, lane), v[j]);
    }
  }
};

}  // namespace braid::cuda

#pragma once

// What the kernels of delta_step() share.

#include <cuda_bf16.h>

#include "ops/cuda/row_vectors.cuh"
#include "ops/elementwise/cuda/activations.cuh"
#include "ops/fused/cuda/packed_rows.cuh"
#include "ops/gated_delta/cuda/delta_rows.cuh"
#include "ops/norm/cuda/rms_norm.cuh"

namespace braid::cuda {

// Warps that compute a value head. Lanes that share a row of the state, rows of a warp at once, and
// rows of a lane: those of gated_delta(), so that all sums have its order.
inline constexpr int kStepWarps = 16, kStepThreads = kStepWarps * kWarp;
inline constexpr int kRowLanes = 8, kLaneRows = kWarp / kRowLanes, kRows = 2;
inline constexpr int kMostDim = 128;
inline constexpr int kVectors = kMostDim / (4 * kRowLanes);
static_assert(kStepWarps * kLaneRows * kRows == kMostDim && 2 * kStepWarps == kWarp);
inline constexpr int kMostWidth = 4;  // of the convolution

struct StepArguments {
  DeltaArguments delta;
  Rows<const float> raw, z;
  const float* conv;
  int conv_width;
  Rows<float> kept_rows;
  int channels;
  Rows<const uint16_t> x;
  const uint16_t* b_weight;
  const uint16_t* a_weight;
  int cols;
  const float* norm;
  float norm_epsilon;
  Rows<uint16_t> packed;  // the result; null: in
  Rows<float> out;
  int ratio;

  __device__ int value_head(int key_head, int member) const {
    return delta.grouped ? key_head * ratio + member : member * delta.key_heads + key_head;
  }
};

// The part of a value head's state that a lane holds in registers.
struct LaneState {
  float4 rows[kRows][kVectors];

  __device__ static int vector(int j) { return j * kRowLanes + threadIdx.x % kRowLanes; }
  __device__ static int row_of(int r) {
    return (threadIdx.x / kWarp * kLaneRows + threadIdx.x % kWarp / kRowLanes) * kRows + r;
  }
  // Row r ← decay · row r + updates[r] · key, as gated_delta() does it.
  __device__ void update(int j, float4 k, float decay, const float (&updates)[kRows]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float4& s = rows[r][j];
      s.x = __fmaf_rn(updates[r], k.x, __fmul_rn(decay, s.x));
      s.y = __fmaf_rn(updates[r], k.y, __fmul_rn(decay, s.y));
      s.z = __fmaf_rn(updates[r], k.z, __fmul_rn(decay, s.z));
      s.w = __fmaf_rn(updates[r], k.w, __fmul_rn(decay, s.w));
    }
  }
  __device__ static float row_sum(float x) {
#pragma unroll
    for (int offset = kRowLanes / 2; offset > 0; offset /= 2) {
      x += __shfl_xor_sync(0xffffffffu, x, offset);
    }
    return x;
  }
  __device__ static float4 scaled(float4 v, float factor) {
    return {v.x * factor, v.y * factor, v.z * factor, v.w * factor};
  }
  // row · (vectors · scale)
  __device__ void dots(const float4* vectors, float scale, float (&sums)[kRows]) const {
    float4 parts[kRows] = {};
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const float4 v = scaled(vectors[vector(j)], scale);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 s = rows[r][j], p = parts[r];
        parts[r] = {fmaf(s.x, v.x, p.x), fmaf(s.y, v.y, p.y), fmaf(s.z, v.z, p.z),
                    fmaf(s.w, v.w, p.w)};
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sums[r] = row_sum((parts[r].x + parts[r].y) + (parts[r].z + parts[r].w));
    }
  }
  // A logged token.
  __device__ void replay(const DeltaArguments& delta, int slot, int t, int head, int key_head,
                         int key_dim, int value_dim) {
    const float* logged = delta.logged_update(slot, t, head);
    const float* logged_key = delta.logged_key(slot, t, key_head);
    const float decay = *delta.logged_decay(slot, t, head);
    float updates[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) updates[r] = row_of(r) < value_dim ? logged[row_of(r)] : 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      update(j, load4<true>(logged_key, 4 * vector(j), key_dim), decay, updates);
    }
  }
};

// What a token is for a value head: by each warp for itself. query, key: [kMostDim] in shared
// memory, as they leave the convolution.
struct TokenScales {
  float key, query, key_query;

  __device__ TokenScales(const float4* queries, const float4* keys, int key_dim, float epsilon) {
    const int lane = threadIdx.x % kWarp;
    const float4 q = queries[lane], k = keys[lane];
    const float products = fmaf(k.w, q.w, fmaf(k.z, q.z, fmaf(k.y, q.y, fmaf(k.x, q.x, 0.0f))));
    const float root = 1 / sqrtf(static_cast<float>(key_dim));
    key = l2_scale(warp_sum(sum_of_squares(k)), epsilon, 1);
    query = l2_scale(warp_sum(sum_of_squares(q)), epsilon, root);
    key_query = warp_sum(products) * key * query;
  }
};

__device__ __forceinline__ float dot(uint32_t a, uint32_t b, float sum) {
  const float2 u = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&a));
  const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&b));
  return fmaf(u.y, v.y, fmaf(u.x, v.x, sum));
}

// By a warp: the norm of a head's results, gated, to the result. gates: silu(z).
__device__ __forceinline__ void finish_head(const StepArguments& args, const float* results,
                                            const float* gates, const float* norm, int token,
                                            int head, int value_dim) {
  const int i = 4 * static_cast<int>(threadIdx.x % kWarp);
  const float4 v = load4<true>(results, i, value_dim);
  const float4 w = load4<true>(norm, i, value_dim);
  const float4 z = load4<true>(gates, i, value_dim);
  const float factor = inverse_rms(warp_sum(sum_of_squares(v)), value_dim, args.norm_epsilon);
  const auto finish = [&](float x, float weight, float gate) {
    return __fmul_rn(__fmul_rn(x, factor), weight) * gate;
  };
  const float4 finished{finish(v.x, w.x, z.x), finish(v.y, w.y, z.y), finish(v.z, w.z, z.z),
                        finish(v.w, w.w, z.w)};
  if (args.packed.data == nullptr) {
    store4<true>(args.out[token] + head * value_dim, i, value_dim, finished);
  } else if (i < value_dim) {
    store_rounded(args.packed[token], head * value_dim + i, finished);
  }
}

// For many sequences, heads of kMostDim: blocks that stay bring the next states while they compute.
void stream_delta_steps(Stream& stream, const StepArguments& args, int num_sequences);

}  // namespace braid::cuda

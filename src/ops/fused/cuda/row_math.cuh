#pragma once

// Arithmetic of rows; float4 are rounded as in the single ops, step by step.

#include <cuda_bf16.h>

#include "ops/cuda/launch.cuh"

namespace braid::cuda {

__device__ __forceinline__ float4 times(float4 v, float factor) {
  return {__fmul_rn(v.x, factor), __fmul_rn(v.y, factor), __fmul_rn(v.z, factor),
          __fmul_rn(v.w, factor)};
}
__device__ __forceinline__ float4 times(float4 v, float4 w) {
  return {__fmul_rn(v.x, w.x), __fmul_rn(v.y, w.y), __fmul_rn(v.z, w.z), __fmul_rn(v.w, w.w)};
}
__device__ __forceinline__ float4 plus(float4 a, float4 b) {
  return {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)};
}

// sum + a · b of two pairs of bfloat16.
__device__ __forceinline__ float dot(uint32_t a, uint32_t b, float sum) {
  const float2 u = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&a));
  const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&b));
  return fmaf(u.y, v.y, fmaf(u.x, v.x, sum));
}

inline bool aligned_weights(const TensorView& view) {
  return view.empty() || reinterpret_cast<uintptr_t>(view.raw()) % 16 == 0;
}

}  // namespace braid::cuda

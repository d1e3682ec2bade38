#pragma once

// Arithmetic of rows that is rounded as in the single ops, step by step.

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

inline bool aligned_weights(const TensorView& view) {
  return view.empty() || reinterpret_cast<uintptr_t>(view.raw()) % 16 == 0;
}

}  // namespace braid::cuda

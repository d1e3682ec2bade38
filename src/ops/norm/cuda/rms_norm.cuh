#pragma once

// Parts of the RMS norm that kernels with more to do share.

namespace braid::cuda {

// (sum / width + epsilon)^(−1/2), sum: of squares.
__device__ __forceinline__ float inverse_rms(float sum, int width, float epsilon) {
  return 1 / sqrtf(sum / static_cast<float>(width) + epsilon);
}

__device__ __forceinline__ float sum_of_squares(float4 v) {
  return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, v.x * v.x)));
}

}  // namespace braid::cuda

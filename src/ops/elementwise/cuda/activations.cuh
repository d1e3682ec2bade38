#pragma once

// The activations of single elements; shared by kernels that fuse them with something else.

namespace braid::cuda {

__device__ __forceinline__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1 + expf(-x)); }

// ½·x·(1 + tanh(u)) = x / (1 + e^(−2u)): no cancellation for negative x, and an overflow of x³ or
// of the exponential ends in the right limit.
__device__ __forceinline__ float gelu_tanh(float x) {
  constexpr float kMinusTwoRootTwoOverPi = -1.5957691216f;
  const float cubic = fmaf(0.044715f, x * x, 1.0f);
  return x / (expf(x * kMinusTwoRootTwoOverPi * cubic) + 1);
}

}  // namespace braid::cuda

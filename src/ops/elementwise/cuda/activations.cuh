#pragma once

// The activations of single elements; shared by kernels that fuse them with something else.

#include "ops/elementwise/elementwise.h"

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

// The same as types.
struct Sigmoid {
  __device__ float operator()(float x) const { return sigmoid(x); }
};
struct Silu {
  __device__ float operator()(float x) const { return silu(x); }
};
struct GeluTanh {
  __device__ float operator()(float x) const { return gelu_tanh(x); }
};
// run(one of them)
template <typename Run>
auto with_activation(Activation activation, const Run& run) {
  return activation == Activation::kSilu ? run(Silu{}) : run(GeluTanh{});
}

}  // namespace braid::cuda

#pragma once

// What the rows of the gated delta rule need before they meet the state.

#include "ops/cuda/launch.cuh"
#include "ops/gated_delta/cuda/recurrent_table.h"
#include "ops/gated_delta/gated_delta.h"

namespace braid::cuda {

struct DeltaArguments {
  Rows<const float> q, k, v, a, b;
  const float* rate;
  const float* dt_bias;
  Rows<float> out;
  float* states;
  float* logged_keys;
  float* logged_updates;
  float* logged_decays;
  const DeviceRecurrentRows* sequences;
  int key_heads, key_dim, value_heads, value_dim, max_logged;
  float epsilon;
  bool grouped;

  __device__ int key_head(int value_head) const {
    return grouped ? value_head / (value_heads / key_heads) : value_head % key_heads;
  }
  __device__ float* state(int slot, int value_head) const {
    return states + (static_cast<int64_t>(slot) * value_heads + value_head) * value_dim * key_dim;
  }
  __device__ float* logged_key(int slot, int token, int key_head) const {
    return logged_keys +
           ((static_cast<int64_t>(slot) * max_logged + token) * key_heads + key_head) * key_dim;
  }
  __device__ float* logged_update(int slot, int token, int value_head) const {
    return logged_updates +
           ((static_cast<int64_t>(slot) * max_logged + token) * value_heads + value_head) *
               value_dim;
  }
  __device__ float* logged_decay(int slot, int token, int value_head) const {
    return logged_decays + (static_cast<int64_t>(slot) * max_logged + token) * value_heads +
           value_head;
  }
};

// e^(rate · softplus(a + dt_bias)) and sigmoid(b); in double precision, as decays multiply up over
// thousands of tokens.
__device__ inline float delta_decay(float a, float dt_bias, float rate) {
  const double x = static_cast<double>(a) + dt_bias;
  const double softplus = x > 20 ? x : log1p(exp(x));
  return static_cast<float>(exp(rate * softplus));
}
__device__ inline float delta_beta(float b) {
  return static_cast<float>(1 / (1 + exp(-static_cast<double>(b))));
}

// factor / √(Σ x² + epsilon) by a warp, for a vector of n elements.
__device__ inline float l2_scale(const float* x, int n, float epsilon, float factor, int lane) {
  float sum = 0;
  for (int i = lane; i < n; i += kWarp) sum = fmaf(x[i], x[i], sum);
  return factor / sqrtf(warp_sum(sum) + epsilon);
}

}  // namespace braid::cuda

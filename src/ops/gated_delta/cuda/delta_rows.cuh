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
  bool chunks;  // sequences of which takes_chunks() says so are computed elsewhere

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

// e^(rate · softplus(a + dt_bias)) and sigmoid(b)
__device__ __forceinline__ float delta_decay(float a, float dt_bias, float rate) {
  const float x = a + dt_bias;
  return expf(rate * (x > 20 ? x : log1pf(expf(x))));
}
__device__ __forceinline__ float delta_beta(float b) { return 1 / (1 + expf(-b)); }

// factor / √(Σ x² + epsilon)
__device__ __forceinline__ float l2_scale(float sum_of_squares, float epsilon, float factor) {
  return factor / sqrtf(sum_of_squares + epsilon);
}

}  // namespace braid::cuda

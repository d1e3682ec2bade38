#pragma once

#include "ops/moe/cuda/few_choices.h"
#include "ops/moe/cuda/top_k.cuh"

namespace braid::cuda {

// Choice i of a token for lane i < k, by a warp.
__device__ __forceinline__ Choice choose_few(const FewChoices& few, int token, ChoiceRoom& room) {
  const int lane = threadIdx.x % kWarp;
  return WarpTopK<kMostFewExperts / kWarp>(few.logits + token * few.stride, few.experts, lane)
      .choose(few.k, room);
}

// Pairs as numbers in the order of groups.
__device__ __forceinline__ int pair_key(int expert, int token) {
  return expert << kTokenBits | token;
}

// Where a pair is among all, which are in shared memory.
__device__ __forceinline__ int place_of(int key, const int* keys, int pairs) {
  int place = 0;
#pragma unroll 4
  for (int i = 0; i < pairs; ++i) place += keys[i] < key;
  return place;
}

// The router's weight of a choice, of lane i < k; by a warp.
__device__ __forceinline__ float weight_of(const Choice& own, const float* logits, int experts,
                                           int k, bool over_chosen, const float* expert_scale) {
  const int lane = threadIdx.x % kWarp;
  const float largest = __shfl_sync(0xffffffffu, own.logit, 0);
  float sum = 0;
  if (over_chosen) {
    sum = lane < k ? expf(own.logit - largest) : 0;
  } else {
#pragma unroll 1
    for (int i = lane; i < experts; i += kWarp) sum += expf(logits[i] - largest);
  }
  sum = warp_sum(sum);
  if (lane >= k) return 0;
  const float weight = expf(own.logit - largest) / sum;
  return expert_scale == nullptr ? weight : weight * expert_scale[own.expert];
}

}  // namespace braid::cuda

#pragma once

#include "ops/cuda/launch.cuh"

namespace braid::cuda {

// The sum of `own` over the threads in front of this one, of a block of kThreads that all call it.
// warp_sums: room for one of each warp in shared memory; all: the sum over the block.
template <int kThreads>
__device__ __forceinline__ int sum_before(int own, int* warp_sums, int& all) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int through = own;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, through, distance);
    if (lane >= distance) through += other;
  }
  if (lane == kWarp - 1) warp_sums[warp] = through;
  __syncthreads();
  int before = through - own;
  all = 0;
#pragma unroll
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w < warp) before += warp_sums[w];
    all += warp_sums[w];
  }
  return before;
}

}  // namespace braid::cuda

#pragma once

// Development only: when the first thread of each block came to which stage.

namespace braid::cuda {

constexpr int kStages = 10, kStampedBlocks = 2048;

#ifdef BRAID_ATTEND_STAMPS
namespace {
__device__ unsigned long long attend_stamps[kStampedBlocks][kStages][2];
__device__ __forceinline__ void stamp(int stage) {
  if (threadIdx.x != 0) return;
  unsigned long long now, clock;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  asm volatile("mov.u64 %0, %clock64;" : "=l"(clock));
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  if (block >= kStampedBlocks) return;
  attend_stamps[block][stage][0] = now;
  attend_stamps[block][stage][1] = clock;
}
}  // namespace
#else
__device__ __forceinline__ void stamp(int) {}
#endif

}  // namespace braid::cuda

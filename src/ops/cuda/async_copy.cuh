#pragma once

// Copies by the copy engine of Hopper, and the barriers in shared memory that they report to. On
// older devices, where nothing that needs them is launched, they do nothing.

#include <cuda.h>

#include <cstdint>

#include "ops/cuda/tensor_core.cuh"

namespace braid::cuda {

// A barrier is in phase 0 at first, and in the next phase once `arrivals` have come and all bytes
// that were announced are there.
__device__ __forceinline__ void init_barrier(uint32_t barrier, int arrivals) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#endif
}
// After init_barrier(), before a barrier of the block.
__device__ __forceinline__ void publish_barriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}
// By all lanes of a warp, through with what they have read or stored. Not by one of them after a
// __syncwarp(): that is as good, but the compiler drops it from warps that are together, and tools
// then see nothing that orders the other lanes.
inline constexpr int kWarpArrivals = 32;
__device__ __forceinline__ void arrive_of_warp(uint32_t barrier) { arrive(barrier); }
__device__ __forceinline__ void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}
// Until the barrier has left the phase of this parity.
__device__ __forceinline__ void wait_barrier(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni over;\n"
      "bra.uni again;\n"
      "over:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

// A box of a tensor map (ops/cuda/tensor_map.h) to shared memory, at a multiple of 1024 bytes.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int column, int row,
                                         uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
#endif
}
// Of a map of chunks of columns.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int column, int row,
                                         int chunk, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(chunk), "r"(barrier)
      : "memory");
#endif
}
// One that is read once: the second-level cache need not keep it.
__device__ __forceinline__ void stream_box(uint32_t to, const CUtensorMap* map, int column, int row,
                                           uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  constexpr uint64_t kEvictFirst = 0x12f0000000000000;
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(kEvictFirst)
      : "memory");
#endif
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
#if __CUDA_ARCH__ >= 900
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}
// `bytes`, addresses: multiples of 16.
__device__ __forceinline__ void copy_bytes(uint32_t to, const void* from, uint32_t bytes,
                                           uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}
// The same, read once.
__device__ __forceinline__ void stream_bytes(uint32_t to, const void* from, uint32_t bytes,
                                             uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  constexpr uint64_t kEvictFirst = 0x12f0000000000000;
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(kEvictFirst)
      : "memory");
#endif
}
// Between ordinary stores, to global memory too, and the copy engine's reads of them. Waits until
// the whole device can see the stores, which takes a microsecond.
__device__ __forceinline__ void publish_to_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
// The same between stores to global memory that this thread can see by now (its own, those in front
// of a barrier, those behind an acquired counter) and later copies; does not wait.
__device__ __forceinline__ void publish_global_to_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

}  // namespace braid::cuda

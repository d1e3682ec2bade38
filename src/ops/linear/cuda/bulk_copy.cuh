#pragma once

// Copies from device to shared memory by the copy engine of Hopper, which counts their bytes off a
// barrier in shared memory. Nothing happens on earlier devices.

#include <cstdint>

namespace braid::cuda {

// For one arrival, which bulk_copy() makes. By a single thread.
__device__ __forceinline__ void init_barrier(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
#endif
}
// Barriers that this thread has made can be seen by the copy engine.
__device__ __forceinline__ void publish_barriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// What this thread has read or written in shared memory lies before copies that are begun later.
__device__ __forceinline__ void publish_to_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Both addresses and `bytes` are multiples of 16. By a single thread.
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, int bytes,
                                          uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}

// Until the barrier has gone through its phase of that parity.
__device__ __forceinline__ void wait_for_barrier(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

}  // namespace braid::cuda

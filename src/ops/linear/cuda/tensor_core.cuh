#pragma once

// Instructions that CUDA C++ has no name for, as matrix products use them.

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/cuda/tensor_core.cuh"

namespace braid::cuda {

// c[16 rows, 8 tokens] += a[16, 16] · b[16, 8] in bfloat16. Of lane l, with g = l / 4 and q = l %
// 4: a0, a2: row g, a1, a3: row g + 8, columns 2 q, 2 q + 1 (a0, a1) and 8 more (a2, a3); b0, b1:
// the same columns of token g; c: rows g, g, g + 8, g + 8 of tokens 2 q, 2 q + 1 in turn.
__device__ __forceinline__ void multiply_add(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                             uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same with c = 0 before.
__device__ __forceinline__ void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.0f));
}

__device__ __forceinline__ uint32_t pack_bfloat16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// 16 bytes that are read once.
__device__ __forceinline__ uint4 load_streamed(const uint8_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// 16 bytes from device to shared memory, in the background; zeros unless `valid`.
__device__ __forceinline__ void copy_async(uint32_t shared, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
// Blocks of a cluster, which exists from Hopper on.
__device__ __forceinline__ void sync_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
#endif
}
// A float32 at `shared` of the block of that rank.
__device__ __forceinline__ float read_of_block(uint32_t shared, int rank) {
  float value = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .u32 remote;\nmapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [remote];\n}"
      : "=f"(value)
      : "r"(shared), "r"(rank)
      : "memory");
#endif
  return value;
}

}  // namespace braid::cuda

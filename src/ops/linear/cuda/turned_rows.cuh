#pragma once

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/tensor_core.cuh"

namespace braid::cuda {

// An 8 × 8 matrix of 16-bit elements, of which lane l holds two of row l / 4, turned over.
__device__ __forceinline__ uint32_t transposed(uint32_t pair) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

// Stores 16 rows × kTokens tokens, of which a warp's lanes have value(i) as warpgroup.cuh orders a
// warp's sums, as bfloat16: out + token · stride has the 16 rows, for tokens below `count`. `out`
// is at a multiple of 8 bytes, stride of 4 elements.
template <int kTokens, typename Value>
__device__ __forceinline__ void store_turned(uint16_t* out, int64_t stride, int count,
                                             const Value& value) {
  const int lane = threadIdx.x % kWarp, quad = lane % 4;
  const bool odd = quad % 2 == 1;
  // Even lanes store four of the first eight rows, odd ones four of the others.
  out += lane / 4 * stride + (quad % 2 * 8 + quad / 2 * 4);
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j, out += 8 * stride) {
    if (8 * j >= count) break;
    // Of token lane / 4: rows 2 · quad and the next, of the first eight and of the others.
    const uint32_t first = transposed(pack_bfloat16(value(4 * j), value(4 * j + 1)));
    const uint32_t second = transposed(pack_bfloat16(value(4 * j + 2), value(4 * j + 3)));
    const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
    if (8 * j + lane / 4 < count) {
      *reinterpret_cast<uint2*>(out) = odd ? make_uint2(other, second) : make_uint2(first, other);
    }
  }
}

}  // namespace braid::cuda

#pragma once

// Floats as int8 codes with a scale for a row (ops/attention/paged_kv.h, ops/linear/linear.h), in
// the operations of the CPU's kernels, so that the bits are the same.

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/cuda/launch.cuh"

namespace braid::cuda {

// Magnitudes in the order of their bits; those of infinities and NaN come last.
__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
__device__ __forceinline__ uint32_t magnitude(float4 v) {
  return max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w)));
}

struct Int8Scale {
  float inverse;  // 0: all codes are 0
  float scale;    // not a number if an element is not finite
};
// Of a row whose largest magnitude this is.
__device__ __forceinline__ Int8Scale int8_scale(uint32_t largest) {
  const float top = __uint_as_float(largest);
  if (largest >= 0x7f800000u) return {0, __int_as_float(0x7fc00000)};
  if (top < 0x1p-100f) return {0, 0};
  return {__fdiv_rn(127.0f, top), __fdiv_rn(top, 127.0f)};
}

// The same with a scale that was chosen ahead, if there is one (`fixed`: it, and 1 / it). Codes
// must be clamped.
__device__ __forceinline__ Int8Scale int8_scale(uint32_t largest, Int8Scale fixed) {
  return fixed.scale > 0 && largest < 0x7f800000u ? fixed : int8_scale(largest);
}
__device__ __forceinline__ int clamped_int8_code(float x, float inverse) {
  return max(-127, min(127, __float2int_rn(__fmul_rn(x, inverse))));
}
__device__ __forceinline__ uint32_t clamped_int8_codes(float4 v, float inverse) {
  const auto code = [&](float x) {
    return static_cast<uint32_t>(clamped_int8_code(x, inverse)) & 0xffu;
  };
  return code(v.x) | code(v.y) << 8 | code(v.z) << 16 | code(v.w) << 24;
}

// Four codes, the first in the low byte.
__device__ __forceinline__ uint32_t int8_codes(float4 v, float inverse) {
  const auto code = [&](float x) {
    return static_cast<uint32_t>(__float2int_rn(__fmul_rn(x, inverse))) & 0xffu;
  };
  return code(v.x) | code(v.y) << 8 | code(v.z) << 16 | code(v.w) << 24;
}

// Four codes as bfloat16, exactly. 0x43xx is 128 + xx for the low seven bits of xx, and 128 or 256
// for its sign.
__device__ __forceinline__ uint2 codes_to_bf16(uint32_t codes) {
  const auto pair = [](uint32_t spread) {
    const uint32_t low = spread & 0xff7fff7fu, sign = spread & 0xff80ff80u;
    const __nv_bfloat162 value = __hsub2(reinterpret_cast<const __nv_bfloat162&>(low),
                                         reinterpret_cast<const __nv_bfloat162&>(sign));
    return reinterpret_cast<const uint32_t&>(value);
  };
  return {pair(__byte_perm(codes, 0x43434343u, 0x4140)),
          pair(__byte_perm(codes, 0x43434343u, 0x4342))};
}

__device__ __forceinline__ uint32_t warp_max(uint32_t x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xffffffffu, x);
#else
  return x;
#endif
}

}  // namespace braid::cuda

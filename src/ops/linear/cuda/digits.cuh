#pragma once

// Inputs as two digits of a byte, 256 · high + low, with a scale for each token and kDigitGroup
// columns: an input moves by at most 1 / 65024 of the largest magnitude of its group. A matrix of
// them has rows [tokens][high, low] of a byte a column, in the order in which the tensor cores meet
// 4-bit codes, and behind those one that has the scales of a group, float32, in its first columns.

#include "ops/cuda/int8.cuh"

namespace braid::cuda {

inline constexpr int kDigitGroup = 128;
inline constexpr int kMostDigitTokens = 16;  // of a matrix

__host__ __device__ constexpr int digit_rows(int tokens) { return 2 * tokens + 1; }

// Bytes of four bits at 4 i of a word and the next one's in turn: columns 0, 4, 1, 5 of eight, then
// 2, 6, 3, 7.
__device__ __forceinline__ int digit_place(int column) {
  const int i = column % 8;
  return column / 32 * 32 + i / 2 % 2 * 16 + column % 32 / 8 * 4 + i % 2 * 2 + i / 4;
}
__device__ __forceinline__ float* digit_scale_at(int8_t* digits, int64_t stride, int tokens,
                                                 int token, int group) {
  return reinterpret_cast<float*>(digits + 2 * tokens * stride + group * kDigitGroup) + token;
}

struct DigitScale {
  float inverse;  // 0: all digits are 0
  float scale;    // not a number if an element is not finite
};
__device__ __forceinline__ DigitScale digit_scale(uint32_t largest) {
  constexpr float kMost = 127 * 256;
  const float top = __uint_as_float(largest);
  if (largest >= 0x7f800000u) return {0, __int_as_float(0x7fc00000)};
  if (top < 0x1p-100f) return {0, 0};
  return {__fdiv_rn(kMost, top), __fdiv_rn(top, kMost)};
}

struct Digits {
  int high, low;
};
__device__ __forceinline__ Digits digits_of(float x, float inverse) {
  const int value = __float2int_rn(x * inverse);
  const int high = (value + 128) >> 8;
  return {high, value - 256 * high};
}

}  // namespace braid::cuda

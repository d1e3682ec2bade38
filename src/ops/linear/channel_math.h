#pragma once

// Exact products of int8 weights with int8 inputs.

#include "ops/linear/row_vectors.h"
#include "quant/schemes/block_layouts.h"

namespace braid::BRAID_ISA {

// Inputs as the instruction set multiplies them: VPDPBUSD takes unsigned bytes, so 128 is added to
// each code, and taken off the sum as 128 · Σ of the row's codes; others multiply pairs of 16 bits.
#if defined(BRAID_ISA_avx512)
using TokenCode = uint8_t;
inline constexpr int32_t kTokenBias = 128;
inline constexpr int kDotColumns = 64;
typedef uint8_t DotVector __attribute__((vector_size(64)));
#else
using TokenCode = int16_t;
inline constexpr int32_t kTokenBias = 0;
inline constexpr int kDotColumns = 2 * kLanes;
typedef int16_t DotVector __attribute__((vector_size(4 * kLanes)));
#endif

BRAID_INLINE const TokenCode* token_codes(const LinearTask& task, int64_t token) {
  return static_cast<const TokenCode*>(task.token_codes) + token * task.cols;
}

BRAID_INLINE DotVector load_inputs(const TokenCode* p) {
  DotVector v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// kDotColumns int8 numbers, as wide as inputs.
BRAID_INLINE DotVector load_weights(const uint8_t* p) {
#if defined(BRAID_ISA_avx512)
  return load_inputs(p);
#else
  typedef int8_t Bytes __attribute__((vector_size(2 * kLanes)));
  Bytes bytes;
  std::memcpy(&bytes, p, sizeof(bytes));
  return __builtin_convertvector(bytes, DotVector);
#endif
}

// sum + the products of inputs and weights, those of 4 (VPDPBUSD) or 2 neighbours in a lane.
BRAID_INLINE Vi multiply_add(Vi sum, DotVector inputs, DotVector weights) {
#if defined(BRAID_ISA_avx512)
  return (Vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)inputs, (__m512i)weights);
#elif defined(BRAID_ISA_avx2)
  return sum + (Vi)_mm256_madd_epi16((__m256i)inputs, (__m256i)weights);
#elif defined(__SSE2__)
  return sum + (Vi)_mm_madd_epi16((__m128i)inputs, (__m128i)weights);
#else
  const Vi a_low = (Vi)inputs << 16 >> 16, a_high = (Vi)inputs >> 16;
  const Vi b_low = (Vi)weights << 16 >> 16, b_high = (Vi)weights >> 16;
  return sum + a_low * b_low + a_high * b_high;
#endif
}

}  // namespace braid::BRAID_ISA

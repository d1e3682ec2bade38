#pragma once

// Vectors of float32 for kernel files (see ops/cpu/dispatch.h). Everything is internal to the
// instruction set it is compiled for.

#include <cstdint>
#include <cstring>

#include "tensor/dtype.h"

#if defined(BRAID_ISA_avx2) || defined(BRAID_ISA_avx512)
#include <immintrin.h>
#endif

namespace braid::BRAID_ISA {

#define BRAID_INLINE [[gnu::always_inline]] static inline

#if defined(BRAID_ISA_avx512)
inline constexpr int kLanes = 16;
#elif defined(BRAID_ISA_avx2)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

typedef float Vf __attribute__((vector_size(4 * kLanes)));
typedef int32_t Vi __attribute__((vector_size(4 * kLanes)));

BRAID_INLINE Vf splat(float x) { return x - Vf{}; }
BRAID_INLINE Vf load(const float* p) {
  Vf v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
BRAID_INLINE void store(float* p, Vf v) { std::memcpy(p, &v, sizeof(v)); }

BRAID_INLINE Vf load(const BFloat16* p) {
#if defined(BRAID_ISA_avx512)
  return (Vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
#elif defined(BRAID_ISA_avx2)
  return (Vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#else
  Vi v{};
  for (int i = 0; i < kLanes; ++i) v[i] = static_cast<int32_t>(uint32_t{p[i].bits} << 16);
  return (Vf)v;
#endif
}

// Round to nearest even; NaN payloads may change.
BRAID_INLINE void store(BFloat16* p, Vf v) {
  const Vi bits = (Vi)v;
  typedef uint32_t Vu __attribute__((vector_size(4 * kLanes)));
  const Vu u = (Vu)bits;
  const Vu rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  const Vi is_nan = v != v;
  const Vu result = (Vu)((is_nan & (Vi)((u >> 16) | 0x40)) | (~is_nan & (Vi)rounded));
  for (int i = 0; i < kLanes; ++i) p[i].bits = static_cast<uint16_t>(result[i]);
}

BRAID_INLINE float half_to_float(uint16_t h) {
#if defined(BRAID_ISA_avx2) || defined(BRAID_ISA_avx512)
  return _cvtsh_ss(h);
#else
  const uint32_t sign = uint32_t{h & 0x8000u} << 16;
  const uint32_t exponent = (h >> 10) & 0x1f;
  const uint32_t mantissa = h & 0x3ff;
  uint32_t bits;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    std::memcpy(&bits, &value, 4);
    bits |= sign;
  } else if (exponent == 31) {
    bits = sign | 0x7f800000u | (mantissa << 13);
  } else {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  }
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
#endif
}

BRAID_INLINE Vf load(const Float16* p) {
#if defined(BRAID_ISA_avx512)
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(BRAID_ISA_avx2)
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
  Vf v;
  for (int i = 0; i < kLanes; ++i) v[i] = half_to_float(p[i].bits);
  return v;
#endif
}

// a * b + c, in one rounding where the instruction set has it (portable: two).
BRAID_INLINE Vf fma(Vf a, Vf b, Vf c) {
#if defined(BRAID_ISA_avx512)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(BRAID_ISA_avx2)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

BRAID_INLINE Vf max(Vf a, Vf b) {
  const Vi greater = a > b;
  return (Vf)((greater & (Vi)a) | (~greater & (Vi)b));
}
BRAID_INLINE Vf min(Vf a, Vf b) {
  const Vi less = a < b;
  return (Vf)((less & (Vi)a) | (~less & (Vi)b));
}

// Sum of the lanes, always in the same order: halves are added until one lane is left.
BRAID_INLINE float reduce_add(Vf v) {
  float lanes[kLanes];
  std::memcpy(lanes, &v, sizeof(v));
  for (int n = kLanes / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) lanes[i] += lanes[i + n];
  }
  return lanes[0];
}
BRAID_INLINE float reduce_max(Vf v) {
  float lanes[kLanes];
  std::memcpy(lanes, &v, sizeof(v));
  float best = lanes[0];
  for (int i = 1; i < kLanes; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

}  // namespace braid::BRAID_ISA

#pragma once

// Small integers as vectors of float32, for kernel files (see ops/cpu/dispatch.h).

#include "ops/cpu/simd.h"

namespace braid::BRAID_ISA {

BRAID_INLINE Vf load(const int8_t* p) {
#if defined(BRAID_ISA_avx512)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(BRAID_ISA_avx2)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
  Vf v;
  for (int i = 0; i < kLanes; ++i) v[i] = p[i];
  return v;
#endif
}

// The first n (0 < n < kLanes) elements; the other lanes are zero.
BRAID_INLINE Vf load_partial(const int8_t* p, int64_t n) {
#if defined(BRAID_ISA_avx512)
  const __m128i bytes = _mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << n) - 1), p);
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#else
  Vf v{};
  for (int i = 0; i < n; ++i) v[i] = p[i];
  return v;
#endif
}

}  // namespace braid::BRAID_ISA

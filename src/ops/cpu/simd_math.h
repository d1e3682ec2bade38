#pragma once

// Parts of vectors and elementary functions for kernel files (see ops/cpu/dispatch.h).

#include "ops/cpu/simd.h"

namespace braid::BRAID_ISA {

// The first n (0 < n < kLanes) elements; the other lanes are zero.
BRAID_INLINE Vf load_partial(const float* p, int64_t n) {
#if defined(BRAID_ISA_avx512)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
#else
  Vf v{};
  for (int i = 0; i < n; ++i) v[i] = p[i];
  return v;
#endif
}
BRAID_INLINE Vf load_partial(const BFloat16* p, int64_t n) {
#if defined(BRAID_ISA_avx512)
  const __m256i bits = _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << n) - 1), p);
  return (Vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
#else
  Vi v{};
  for (int i = 0; i < n; ++i) v[i] = static_cast<int32_t>(uint32_t{p[i].bits} << 16);
  return (Vf)v;
#endif
}
// Writes the first n lanes.
BRAID_INLINE void store_partial(float* p, int64_t n, Vf v) {
#if defined(BRAID_ISA_avx512)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), v);
#else
  for (int i = 0; i < n; ++i) p[i] = v[i];
#endif
}

// mask lanes are all ones or all zeros.
BRAID_INLINE Vf select(Vi mask, Vf yes, Vf no) { return (Vf)((mask & (Vi)yes) | (~mask & (Vi)no)); }

// Lane i holds i.
BRAID_INLINE Vi lane_index() {
  Vi v{};
  for (int i = 0; i < kLanes; ++i) v[i] = i;
  return v;
}

// x = n·ln 2 + r with integer n and |r| <= ln 2 / 2 (a little more by rounding); |x| < 128.
// power = 2^n, expm1 = e^r − 1.
struct ReducedExp {
  Vf power;
  Vf expm1;
};
BRAID_INLINE ReducedExp reduced_exp(Vf x) {
  const Vf kRound = splat(0x1.8p23f);  // adding it leaves the nearest integer in the low bits
  const Vf shifted = fma(x, splat(1.44269504f), kRound);
  const Vf n = shifted - kRound;
  // ln 2 in two parts; n times the first is exact.
  const Vf r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), x));
  // Taylor series to r⁷: the rest is below r⁸/8! < 6e-9.
  Vf p = splat(1.0f / 5040);
  p = fma(p, r, splat(1.0f / 720));
  p = fma(p, r, splat(1.0f / 120));
  p = fma(p, r, splat(1.0f / 24));
  p = fma(p, r, splat(1.0f / 6));
  p = fma(p, r, splat(0.5f));
  const Vf expm1 = fma(p, r * r, r);
  const Vi bits = (((Vi)shifted - (Vi)kRound) + 127) << 23;
  return {(Vf)bits, expm1};
}

// e^x within 2 ulp; exactly 1 at 0. Below the normal range (x < −87.3) zero; above 88.3 infinity;
// NaN stays NaN.
BRAID_INLINE Vf exp(Vf x) {
  const Vf low = splat(-87.3f);
  const Vf high = splat(88.3f);
  const ReducedExp e = reduced_exp(min(high, max(low, x)));
  Vf y = fma(e.expm1, e.power, e.power);
  y = select(x < low, Vf{}, y);
  return select(x > high, splat(__builtin_inff()), y);
}

// 1 / (1 + e^(−x)) within 4 ulp where it is above 1e-37; zero or the like below.
BRAID_INLINE Vf sigmoid(Vf x) { return 1.0f / (exp(-x) + 1.0f); }
// x·sigmoid(x)
BRAID_INLINE Vf silu(Vf x) { return x / (exp(-x) + 1.0f); }

// tanh(x) within 4 ulp for every x, signed zeros and NaN included: with t = e^{2|x|} − 1, t/(t +
// 2).
BRAID_INLINE Vf tanh(Vf x) {
  const Vi sign = (Vi)x & (Vi)splat(-0.0f);
  const Vf magnitude = (Vf)((Vi)x ^ sign);
  // tanh(10) is 1 in float32.
  const ReducedExp e = reduced_exp(min(splat(20), magnitude + magnitude));
  const Vf t = fma(e.expm1, e.power, e.power - 1.0f);
  const Vf y = t / (t + 2.0f);
  return (Vf)((Vi)y | sign);
}

}  // namespace braid::BRAID_ISA

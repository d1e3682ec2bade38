#pragma once

// Sums over the lanes of several vectors at once, for kernel files (see ops/cpu/dispatch.h).

#include "ops/cpu/simd.h"

namespace braid::BRAID_ISA {

struct AddLanes {
  template <typename V>
  [[gnu::always_inline]] V operator()(V a, V b) const {
    return a + b;
  }
};
// b if one of them is NaN, as max().
struct MaxLanes {
  [[gnu::always_inline]] Vf operator()(Vf a, Vf b) const {
#if defined(BRAID_ISA_avx512)
    return _mm512_max_ps(a, b);
#elif defined(BRAID_ISA_avx2)
    return _mm256_max_ps(a, b);
#else
    return max(a, b);
#endif
  }
};

#if defined(BRAID_ISA_avx2) || defined(BRAID_ISA_avx512)
// Lanes whose number has the bit kDistance clear get a[l] and a[l + kDistance] folded, the others
// b[l − kDistance] and b[l].
template <int kDistance, typename Op>
BRAID_INLINE __m256 fold_lanes(__m256 a, __m256 b, const Op& op) {
  if constexpr (kDistance == 4) {
    return op(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
  } else if constexpr (kDistance == 2) {
    return op(_mm256_blend_ps(a, b, 0xcc), _mm256_shuffle_ps(a, b, _MM_SHUFFLE(1, 0, 3, 2)));
  } else {
    return op(_mm256_blend_ps(a, b, 0xaa),
              _mm256_permute_ps(_mm256_blend_ps(b, a, 0xaa), _MM_SHUFFLE(2, 3, 0, 1)));
  }
}
#endif

#if defined(BRAID_ISA_avx512)
template <int kDistance, typename Op>
BRAID_INLINE __m512 fold_lanes(__m512 a, __m512 b, const Op& op) {
  if constexpr (kDistance == 8) {
    return op(_mm512_mask_blend_ps(0xff00, a, b),
              _mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(1, 0, 3, 2)));
  } else if constexpr (kDistance == 4) {
    const __m512 crossed = _mm512_mask_blend_ps(0xf0f0, b, a);
    return op(_mm512_mask_blend_ps(0xf0f0, a, b),
              _mm512_shuffle_f32x4(crossed, crossed, _MM_SHUFFLE(2, 3, 0, 1)));
  } else if constexpr (kDistance == 2) {
    return op(_mm512_mask_blend_ps(0xcccc, a, b), _mm512_shuffle_ps(a, b, _MM_SHUFFLE(1, 0, 3, 2)));
  } else {
    return op(_mm512_mask_blend_ps(0xaaaa, a, b),
              _mm512_permute_ps(_mm512_mask_blend_ps(0xaaaa, b, a), _MM_SHUFFLE(2, 3, 0, 1)));
  }
}
#endif

// Lane i of the result: the lanes of v[i], folded in halves until one is left (as reduce_add does).
template <typename Op>
BRAID_INLINE Vf reduce_lanes(Vf (&v)[kLanes], const Op& op) {
#if defined(BRAID_ISA_avx512)
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) v[i] = fold_lanes<8>(v[i], v[i + 8], op);
#endif
#if defined(BRAID_ISA_avx2) || defined(BRAID_ISA_avx512)
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) v[i] = fold_lanes<4>(v[i], v[i + 4], op);
#pragma GCC unroll 8
  for (int i = 0; i < 2; ++i) v[i] = fold_lanes<2>(v[i], v[i + 2], op);
  return fold_lanes<1>(v[0], v[1], op);
#else
  Vf result;
  for (int i = 0; i < kLanes; ++i) {
    Vf x = v[i];
    for (int n = kLanes / 2; n > 0; n /= 2) {
      Vf shifted = x;
      for (int l = 0; l < n; ++l) shifted[l] = x[l + n];
      x = op(x, shifted);
    }
    result[i] = x[0];
  }
  return result;
#endif
}

}  // namespace braid::BRAID_ISA

#pragma once

// What blocks' packed bits mean, for kLanes rows at once, wherever they were loaded from.

#include "ops/linear/row_vectors.h"

namespace braid::BRAID_ISA {

// 16 in the bytes of word `i` whose bit is set; bit k belongs to value k of 32.
BRAID_INLINE Vu fifth_bits(Vu bits, int i) {
  const Vu mask = splat_u32(i % 2 == 0 ? 0x08040201u : 0x80402010u);
  const Vb set = (Vb)((Vb)(repeat_byte(bits, i / 2) & mask) == (Vb)mask);
  return (Vu)set & 0x10101010;
}

// Scales and mins of q4_k and q5_k blocks, whose first 16 bytes are alike: d, dmin and eight pairs
// of 6 bits (see scale_min in quant/schemes/k_blocks.cc). Calls set(Index<sub-block>, scale, min).
template <typename Set>
BRAID_INLINE void q4_k_scales(const Vu (&head)[4], const Set& set) {
  Vf d, dmin;
  split_halves(head[0], d, dmin);
  const Vu scales[2] = {head[1] & 0x3f3f3f3f,
                        (head[3] & 0x0f0f0f0f) | ((head[1] >> 2) & 0x30303030)};
  const Vu mins[2] = {head[2] & 0x3f3f3f3f,
                      ((head[3] >> 4) & 0x0f0f0f0f) | ((head[2] >> 2) & 0x30303030)};
  unroll<0, 8>(BRAID_UNROLLED(sub) {
    constexpr int s = sub.value;
    set(sub, d * unsigned_byte<s % 4>(scales[s / 4]), -(dmin * unsigned_byte<s % 4>(mins[s / 4])));
  });
}

// The others call set(Index<group of 16>, scale[, min]).
template <typename Set>
BRAID_INLINE void q2_k_scales(const Vu (&scales)[4], Vf d, Vf dmin, const Set& set) {
  unroll<0, 16>(BRAID_UNROLLED(group) {
    constexpr int g = group.value;
    set(group, d * unsigned_byte<g % 4>(scales[g / 4] & 0x0f0f0f0f),
        -(dmin * unsigned_byte<g % 4>((scales[g / 4] >> 4) & 0x0f0f0f0f)));
  });
}

template <typename Set>
BRAID_INLINE void q3_k_scales(const Vu (&packed)[3], Vf d, const Set& set) {
  unroll<0, 16>(BRAID_UNROLLED(group) {
    constexpr int g = group.value;
    const Vu low = (packed[g / 4 % 2] >> (g < 8 ? 0 : 4)) & 0x0f0f0f0f;
    const Vu high = (packed[2] >> (2 * (g / 4))) & 0x03030303;
    set(group, d * (unsigned_byte<g % 4>(low | (high << 4)) - splat(32.0f)));
  });
}

template <typename Set>
BRAID_INLINE void q6_k_scales(const Vu (&scales)[4], Vf d, const Set& set) {
  unroll<0, 16>(BRAID_UNROLLED(group) {
    constexpr int g = group.value;
    set(group, d * signed_byte<g % 4>(scales[g / 4]));
  });
}

}  // namespace braid::BRAID_ISA

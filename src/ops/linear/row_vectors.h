#pragma once

// Primitives of the matrix kernels. A vector holds the same position of kLanes neighbouring rows:
// lane r belongs to row r, so that every output is one chain of additions of its own and its value
// does not depend on how many rows or tokens are computed together.

#include "ops/cpu/simd.h"
#include "ops/linear/linear_kernels.h"

#if !defined(BRAID_ISA_avx2) && !defined(BRAID_ISA_avx512) && defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace braid::BRAID_ISA {

typedef uint8_t Vb __attribute__((vector_size(4 * kLanes)));
typedef int16_t Vs __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Vu __attribute__((vector_size(4 * kLanes)));

// Compile-time loop: the indices are constants, so arrays of vectors stay in registers.
template <int kValue>
struct Index {
  static constexpr int value = kValue;
};
template <int kBegin, int kEnd, typename Body>
BRAID_INLINE void unroll(const Body& body) {
  if constexpr (kBegin < kEnd) {
    body(Index<kBegin>{});
    unroll<kBegin + 1, kEnd>(body);
  }
}
#define BRAID_UNROLLED(i) [&](auto i) __attribute__((always_inline))

// The same for loops that need no constants before they are unrolled: much less to compile.
#define BRAID_LOOP(...) _Pragma("GCC unroll 32") for (__VA_ARGS__)

// Has the compiler finish the sum here. Left alone it may do all products of a tile first and spill
// them for want of registers.
template <typename V>
BRAID_INLINE void pin([[maybe_unused]] V& v) {
#if defined(BRAID_ISA_avx2)
  asm volatile("" : "+x"(v));
#elif defined(BRAID_ISA_avx512)
  asm volatile("" : "+v"(v));
#endif
}

// The kLanes rows of one vector. Past the last row the last one is repeated.
struct RowGroup {
  const uint8_t* row[kLanes];

  [[gnu::always_inline]] static RowGroup at(const LinearTask& task, int64_t first) {
    RowGroup group;
    for (int r = 0; r < kLanes; ++r) {
      const int64_t i = first + r < task.rows ? first + r : task.rows - 1;
      group.row[r] = task.weights + i * task.row_bytes;
    }
    return group;
  }
};

BRAID_INLINE Vu splat_u32(uint32_t x) { return x - Vu{}; }
BRAID_INLINE Vi splat_i32(int32_t x) { return x - Vi{}; }
// Four bytes in every lane.
BRAID_INLINE Vu splat_bytes(const void* p) {
  uint32_t x;
  std::memcpy(&x, p, 4);
  return splat_u32(x);
}
BRAID_INLINE Vf to_vf(Vi v) { return __builtin_convertvector(v, Vf); }

// out[i], lane r: 32-bit word i of the 16 bytes at `offset` of row r.
BRAID_INLINE void transpose16(const RowGroup& rows, int64_t offset, Vu* out) {
#if defined(BRAID_ISA_avx512)
  __m512i a[4];
  unroll<0, 4>(BRAID_UNROLLED(i) {
    constexpr int j = i.value;
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i*)(rows.row[j] + offset)));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i*)(rows.row[j + 4] + offset)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i*)(rows.row[j + 8] + offset)), 2);
    a[j] = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i*)(rows.row[j + 12] + offset)), 3);
  });
  const __m512i t0 = _mm512_unpacklo_epi32(a[0], a[1]), t1 = _mm512_unpackhi_epi32(a[0], a[1]);
  const __m512i t2 = _mm512_unpacklo_epi32(a[2], a[3]), t3 = _mm512_unpackhi_epi32(a[2], a[3]);
  out[0] = (Vu)_mm512_unpacklo_epi64(t0, t2);
  out[1] = (Vu)_mm512_unpackhi_epi64(t0, t2);
  out[2] = (Vu)_mm512_unpacklo_epi64(t1, t3);
  out[3] = (Vu)_mm512_unpackhi_epi64(t1, t3);
#elif defined(BRAID_ISA_avx2)
  __m256i a[4];
  unroll<0, 4>(BRAID_UNROLLED(i) {
    constexpr int j = i.value;
    const __m256i v =
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i*)(rows.row[j] + offset)));
    a[j] =
        _mm256_inserti128_si256(v, _mm_loadu_si128((const __m128i*)(rows.row[j + 4] + offset)), 1);
  });
  const __m256i t0 = _mm256_unpacklo_epi32(a[0], a[1]), t1 = _mm256_unpackhi_epi32(a[0], a[1]);
  const __m256i t2 = _mm256_unpacklo_epi32(a[2], a[3]), t3 = _mm256_unpackhi_epi32(a[2], a[3]);
  out[0] = (Vu)_mm256_unpacklo_epi64(t0, t2);
  out[1] = (Vu)_mm256_unpackhi_epi64(t0, t2);
  out[2] = (Vu)_mm256_unpacklo_epi64(t1, t3);
  out[3] = (Vu)_mm256_unpackhi_epi64(t1, t3);
#else
  Vu a[4];
  for (int i = 0; i < 4; ++i) std::memcpy(&a[i], rows.row[i] + offset, 16);
  const Vu t0 = __builtin_shufflevector(a[0], a[1], 0, 4, 1, 5);
  const Vu t1 = __builtin_shufflevector(a[0], a[1], 2, 6, 3, 7);
  const Vu t2 = __builtin_shufflevector(a[2], a[3], 0, 4, 1, 5);
  const Vu t3 = __builtin_shufflevector(a[2], a[3], 2, 6, 3, 7);
  out[0] = __builtin_shufflevector(t0, t2, 0, 1, 4, 5);
  out[1] = __builtin_shufflevector(t0, t2, 2, 3, 6, 7);
  out[2] = __builtin_shufflevector(t1, t3, 0, 1, 4, 5);
  out[3] = __builtin_shufflevector(t1, t3, 2, 3, 6, 7);
#endif
}

BRAID_INLINE void transpose32(const RowGroup& rows, int64_t offset, Vu* out) {
  transpose16(rows, offset, out);
  transpose16(rows, offset + 16, out + 4);
}

// Lane r: the 32-bit word at `offset` of row r.
BRAID_INLINE Vu load_words(const RowGroup& rows, int64_t offset) {
  uint32_t words[kLanes];
  unroll<0, kLanes>(
      BRAID_UNROLLED(i) { std::memcpy(&words[i.value], rows.row[i.value] + offset, 4); });
#if defined(BRAID_ISA_avx512)
  return (Vu)_mm512_setr_epi32(words[0], words[1], words[2], words[3], words[4], words[5], words[6],
                               words[7], words[8], words[9], words[10], words[11], words[12],
                               words[13], words[14], words[15]);
#elif defined(BRAID_ISA_avx2)
  return (Vu)_mm256_setr_epi32(words[0], words[1], words[2], words[3], words[4], words[5], words[6],
                               words[7]);
#else
  return Vu{words[0], words[1], words[2], words[3]};
#endif
}

// The portable conversion is long: one copy is enough.
#if defined(BRAID_ISA_avx2) || defined(BRAID_ISA_avx512)
#define BRAID_HALVES BRAID_INLINE
#else
#define BRAID_HALVES [[gnu::noinline, maybe_unused]] static
#endif

// Lane r: the float16 at `offset` of row r.
BRAID_HALVES Vf load_halves(const RowGroup& rows, int64_t offset) {
  uint16_t h[kLanes];
  unroll<0, kLanes>(BRAID_UNROLLED(i) { std::memcpy(&h[i.value], rows.row[i.value] + offset, 2); });
#if defined(BRAID_ISA_avx512)
  return _mm512_cvtph_ps(_mm256_setr_epi16(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7], h[8],
                                           h[9], h[10], h[11], h[12], h[13], h[14], h[15]));
#elif defined(BRAID_ISA_avx2)
  return _mm256_cvtph_ps(_mm_setr_epi16(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]));
#else
  return Vf{half_to_float(h[0]), half_to_float(h[1]), half_to_float(h[2]), half_to_float(h[3])};
#endif
}

// The two float16 numbers in every lane.
BRAID_HALVES void split_halves(Vu v, Vf& low, Vf& high) {
#if defined(BRAID_ISA_avx512)
  low = _mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)v));
  high = _mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)(v >> 16)));
#elif defined(BRAID_ISA_avx2)
  const __m256i packed = _mm256_permute4x64_epi64(
      _mm256_packus_epi32((__m256i)(v & 0xffff), (__m256i)(v >> 16)), _MM_SHUFFLE(3, 1, 2, 0));
  low = _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
  high = _mm256_cvtph_ps(_mm256_extracti128_si256(packed, 1));
#else
  for (int i = 0; i < kLanes; ++i) {
    low[i] = half_to_float(static_cast<uint16_t>(v[i]));
    high[i] = half_to_float(static_cast<uint16_t>(v[i] >> 16));
  }
#endif
}

// Byte `i` of every lane as a number, without and with sign.
template <int i>
BRAID_INLINE Vf unsigned_byte(Vu v) {
  return to_vf((Vi)((v >> (8 * i)) & 0xff));
}
template <int i>
BRAID_INLINE Vf signed_byte(Vu v) {
  return to_vf((Vi)(v << (24 - 8 * i)) >> 24);
}

// Byte `i` of every lane, four times.
BRAID_INLINE Vu repeat_byte(Vu v, int i) {
#if defined(BRAID_ISA_avx512)
  return (Vu)_mm512_shuffle_epi8(
      (__m512i)v,
      _mm512_broadcast_i32x4(_mm_add_epi32(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c),
                                           _mm_set1_epi32(i * 0x01010101))));
#elif defined(BRAID_ISA_avx2)
  return (Vu)_mm256_shuffle_epi8(
      (__m256i)v,
      _mm256_broadcastsi128_si256(_mm_add_epi32(
          _mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c), _mm_set1_epi32(i * 0x01010101))));
#else
  return ((v >> (8 * i)) & 0xff) * 0x01010101u;
#endif
}

// table[b & 15] for every byte b, which is 0 to 15.
BRAID_INLINE Vu look_up(const int8_t* table, Vu v) {
#if defined(BRAID_ISA_avx512)
  return (Vu)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)),
                                 (__m512i)v);
#elif defined(BRAID_ISA_avx2)
  return (Vu)_mm256_shuffle_epi8(
      _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table)), (__m256i)v);
#else
  Vb bytes = (Vb)v;
  for (int i = 0; i < 4 * kLanes; ++i) bytes[i] = static_cast<uint8_t>(table[bytes[i]]);
  return (Vu)bytes;
#endif
}

// Brings a range into the second-level cache, a few lines at a time, while another one is worked
// on.
struct Prefetcher {
  const uint8_t* next;
  const uint8_t* due;  // lines before it have been asked for
  const uint8_t* end;

  [[gnu::always_inline]] void advance(int64_t bytes) {
    due = due + bytes < end ? due + bytes : end;
    for (; next < due; next += 64) __builtin_prefetch(next, 0, 2);
  }
};
// Rows [begin, begin + count), as far as they are before `row_end`.
BRAID_INLINE Prefetcher prefetch_rows(const LinearTask& task, int64_t begin, int64_t count,
                                      int64_t row_end) {
  const int64_t first = begin < row_end ? begin : row_end;
  const int64_t last = first + count < row_end ? first + count : row_end;
  const uint8_t* data = task.weights + first * task.row_bytes;
  return {data, data, task.weights + last * task.row_bytes};
}

}  // namespace braid::BRAID_ISA

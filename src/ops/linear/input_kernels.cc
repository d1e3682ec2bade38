#include "ops/cpu/simd.h"
#include "ops/linear/linear_kernels.h"

namespace braid::BRAID_ISA {
namespace {

// Nearest integer, ties to even, for |x| below 2^22.
BRAID_INLINE Vi round_to_int(Vf x) {
  const Vf magic = splat(12582912.0f);  // 1.5 · 2^23
  return (Vi)(x + magic) - (Vi)magic;
}

#if defined(BRAID_ISA_avx2) || defined(BRAID_ISA_avx512)
// 32 numbers from -127 to 127 as bytes, and the sums of both halves.
BRAID_INLINE void store_codes(const Vi* rounded, int8_t* codes, int32_t* sums) {
  __m256i bytes;
#if defined(BRAID_ISA_avx512)
  bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8((__m512i)rounded[1]),
                           _mm512_cvtepi32_epi8((__m512i)rounded[0]));
#else
  const __m256i low = _mm256_packs_epi32((__m256i)rounded[0], (__m256i)rounded[1]);
  const __m256i high = _mm256_packs_epi32((__m256i)rounded[2], (__m256i)rounded[3]);
  bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high),
                                      _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
#endif
  _mm256_storeu_si256((__m256i*)codes, bytes);
  // Sums of eight bytes without their sign, then of sixteen.
  const __m256i eights =
      _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
  const __m256i both = _mm256_add_epi64(eights, _mm256_unpackhi_epi64(eights, eights));
  sums[0] = _mm256_extract_epi32(both, 0) - 16 * 128;
  sums[1] = _mm256_extract_epi32(both, 4) - 16 * 128;
}
#else
BRAID_INLINE void store_codes(const Vi* rounded, int8_t* codes, int32_t* sums) {
  for (int half = 0; half < 2; ++half) {
    int32_t sum = 0;
    for (int i = 0; i < 16; ++i) {
      const int32_t code = rounded[(16 * half + i) / kLanes][i % kLanes];
      codes[16 * half + i] = static_cast<int8_t>(code);
      sum += code;
    }
    sums[half] = sum;
  }
}
#endif

// The largest lane, or NaN if there is one.
BRAID_INLINE float largest_or_nan(Vf v) {
#if defined(BRAID_ISA_avx2) || defined(BRAID_ISA_avx512)
  // Magnitudes compare like their bits, and those of NaN are the largest.
#if defined(BRAID_ISA_avx512)
  const __m256i eight = _mm256_max_epi32(_mm512_castsi512_si256((__m512i)v),
                                         _mm512_extracti64x4_epi64((__m512i)v, 1));
#else
  const __m256i eight = (__m256i)v;
#endif
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, _MM_SHUFFLE(1, 0, 3, 2)));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, _MM_SHUFFLE(2, 3, 0, 1)));
  return _mm_cvtss_f32(_mm_castsi128_ps(four));
#else
  const Vi bits = (Vi)v;
  int32_t largest = bits[0];
  for (int i = 1; i < kLanes; ++i) largest = bits[i] > largest ? bits[i] : largest;
  float result;
  std::memcpy(&result, &largest, sizeof(result));
  return result;
#endif
}

BRAID_INLINE Vi max_bits(Vi a, Vi b) {
  const Vi greater = a > b;
  return (greater & a) | (~greater & b);
}

void quantize(const float* x, int64_t cols, int8_t* codes, float* scales, int32_t* sums) {
  constexpr int kVectors = 32 / kLanes;
  for (int64_t block = 0; block < cols / 32; ++block, x += 32, codes += 32) {
    Vf values[kVectors];
    Vi peak{};
    for (int i = 0; i < kVectors; ++i) {
      values[i] = load(x + i * kLanes);
      peak = max_bits(peak, (Vi)values[i] & 0x7fffffff);
    }
    const float largest = largest_or_nan((Vf)peak);
    const bool usable = largest >= 0x1p-100f && largest <= 0x1.fffffep127f;
    // Nothing times infinity is not a number.
    scales[block] = usable ? largest / 127.0f : largest * 0.0f;
    const Vf inverse = splat(usable ? 127.0f / largest : 0.0f);
    Vi rounded[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      rounded[i] = usable ? round_to_int(values[i] * inverse) : Vi{};
    }
    store_codes(rounded, codes, sums + 2 * block);
  }
}

// `x` with the lower half of each number rounded away; NaN stays NaN.
BRAID_INLINE Vf to_bfloat16_grid(Vf x) {
  typedef uint32_t Vu __attribute__((vector_size(4 * kLanes)));
  const Vu bits = (Vu)x;
  const Vu rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const Vu is_nan = (Vu)(x != x);
  return (Vf)(((rounded & ~is_nan) | ((bits | 0x400000) & is_nan)) & 0xffff0000);
}

void round_to_bfloat16(const float* x, int64_t cols, float* rounded, BFloat16* packed) {
  int64_t i = 0;
  for (; i + kLanes <= cols; i += kLanes) {
    const Vf v = to_bfloat16_grid(load(x + i));
    store(rounded + i, v);
    if (packed != nullptr) store(packed + i, v);
  }
  for (; i < cols; ++i) {
    const BFloat16 v = to_bfloat16(x[i]);
    rounded[i] = to_float(v);
    if (packed != nullptr) packed[i] = v;
  }
  if (packed != nullptr && cols % 2 != 0) packed[cols] = BFloat16{0};
}

}  // namespace

#if defined(BRAID_ISA_avx512)
const InputKernels kInputKernels = {quantize, round_to_bfloat16, true};
#else
const InputKernels kInputKernels = {quantize, round_to_bfloat16, false};
#endif

}  // namespace braid::BRAID_ISA

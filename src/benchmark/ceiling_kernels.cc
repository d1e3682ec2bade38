#include "benchmark/ceiling_kernels.h"

#include "ops/cpu/simd.h"

namespace braid::BRAID_ISA {
namespace {

// Enough sums in flight to hide the latency of two units of up to five cycles.
constexpr int kSums = 12;

// Keeps the compiler from knowing what `v` holds.
template <typename V>
BRAID_INLINE void forget(V& v) {
#if defined(BRAID_ISA_avx512)
  asm("" : "+v"(v));
#elif defined(__x86_64__)
  asm("" : "+x"(v));
#else
  asm("" : "+w"(v));
#endif
}

void read(const std::byte* data, int64_t bytes, float* sink) {
  const int64_t stream_bytes = bytes / kReadStreams;
  Vf sums[kReadStreams] = {};
  for (int64_t i = 0; i < stream_bytes; i += 64) {
    for (int s = 0; s < kReadStreams; ++s) {
      const std::byte* line = data + s * stream_bytes + i;
      __builtin_prefetch(line + 1024);
      for (int part = 0; part < 64; part += static_cast<int>(sizeof(Vf))) {
        Vf v;
        std::memcpy(&v, line + part, sizeof(v));
        sums[s] = (Vf)((Vi)sums[s] ^ (Vi)v);
      }
    }
  }
  Vi all{};
  for (int s = 0; s < kReadStreams; ++s) all ^= (Vi)sums[s];
  for (int i = 0; i < kLanes; ++i) *sink += static_cast<float>(all[i]);
}

void f32(int64_t rounds, float* sink) {
  Vf sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = splat(static_cast<float>(i));
  Vf a = splat(*sink + 0.5f), b = splat(*sink + 0.25f);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      sums[i] = fma(a, b, sums[i]);
      forget(sums[i]);
    }
  }
  for (int i = 1; i < kSums; ++i) sums[0] += sums[i];
  *sink += reduce_add(sums[0]) * 0;
}
constexpr int64_t kF32Operations = 2 * kLanes * kSums;

#if defined(BRAID_ISA_avx512)

void int8(int64_t rounds, float* sink) {
  __m512i sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = _mm512_set1_epi32(i);
  const __m512i a = _mm512_set1_epi8(static_cast<char>(*sink + 3)), b = a;
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      sums[i] = _mm512_dpbusd_epi32(sums[i], a, b);
      forget(sums[i]);
    }
  }
  for (int i = 1; i < kSums; ++i) sums[0] = _mm512_xor_si512(sums[0], sums[i]);
  *sink += static_cast<float>(_mm512_reduce_add_epi32(sums[0])) * 0;
}
constexpr int64_t kInt8Operations = 2 * 64 * kSums;

void bf16(int64_t rounds, float* sink) {
  __m512 sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512bh a = (__m512bh)_mm512_set1_epi16(static_cast<short>(*sink + 0x3f00)), b = a;
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      sums[i] = _mm512_dpbf16_ps(sums[i], a, b);
      forget(sums[i]);
    }
  }
  for (int i = 1; i < kSums; ++i) sums[0] += sums[i];
  *sink += reduce_add((Vf)sums[0]) * 0;
}
constexpr int64_t kBF16Operations = 2 * 32 * kSums;

#elif defined(BRAID_ISA_avx2)

// Products of small codes may be added in 16 bits a few times before they are widened: the most
// that any kernel can do.
void int8(int64_t rounds, float* sink) {
  __m256i sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = _mm256_set1_epi16(static_cast<short>(i));
  __m256i a = _mm256_set1_epi8(static_cast<char>(*sink + 3)), b = a;
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      forget(a);
      sums[i] = _mm256_add_epi16(sums[i], _mm256_maddubs_epi16(a, b));
      forget(sums[i]);
    }
  }
  for (int i = 1; i < kSums; ++i) sums[0] = _mm256_xor_si256(sums[0], sums[i]);
  *sink += static_cast<float>(_mm256_extract_epi16(sums[0], 0)) * 0;
}
constexpr int64_t kInt8Operations = 2 * 32 * kSums;

#else

typedef int16_t Vs __attribute__((vector_size(16)));

void int8(int64_t rounds, float* sink) {
  Vs sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = Vs{} + static_cast<int16_t>(i);
  Vs a = Vs{} + static_cast<int16_t>(*sink + 3), b = a;
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      forget(a);
      sums[i] += a * b;
      forget(sums[i]);
    }
  }
  for (int i = 1; i < kSums; ++i) sums[0] ^= sums[i];
  *sink += static_cast<float>(sums[0][0]) * 0;
}
constexpr int64_t kInt8Operations = 2 * 8 * kSums;

#endif

#if !defined(BRAID_ISA_avx512)
// Without instructions of their own, bfloat16 values are multiplied as float32.
constexpr auto bf16 = f32;
constexpr int64_t kBF16Operations = kF32Operations;
#endif

}  // namespace

const CeilingKernels kCeilingKernels = {.read = read,
                                        .int8 = int8,
                                        .bf16 = bf16,
                                        .f32 = f32,
                                        .int8_operations = kInt8Operations,
                                        .bf16_operations = kBF16Operations,
                                        .f32_operations = kF32Operations};

}  // namespace braid::BRAID_ISA

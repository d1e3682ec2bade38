#include "benchmark/ceiling_kernels.h"

#include "ops/cpu/simd.h"

namespace braid::BRAID_ISA {
namespace {

// Enough sums in flight to hide the latency of two units of up to five cycles: so many variables
// (the compiler would keep an array in memory).
constexpr int kSums = 12;
#define BRAID_EACH_SUM(step)                                                                \
  step(s0) step(s1) step(s2) step(s3) step(s4) step(s5) step(s6) step(s7) step(s8) step(s9) \
      step(s10) step(s11)

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
#define BRAID_DECLARE(s) Vf s = Vf{};
  BRAID_EACH_SUM(BRAID_DECLARE)
  const Vf a = splat(*sink + 0.5f), b = splat(*sink + 0.25f);
  for (int64_t r = 0; r < rounds; ++r) {
#define BRAID_STEP(s) \
  s = fma(a, b, s);   \
  forget(s);
    BRAID_EACH_SUM(BRAID_STEP)
  }
  Vf all = Vf{};
#define BRAID_FOLD(s) all += s;
  BRAID_EACH_SUM(BRAID_FOLD)
  *sink += reduce_add(all) * 0;
#undef BRAID_DECLARE
#undef BRAID_STEP
#undef BRAID_FOLD
}
constexpr int64_t kF32Operations = 2 * kLanes * kSums;

#if defined(BRAID_ISA_avx512)

void int8(int64_t rounds, float* sink) {
#define BRAID_DECLARE(s) __m512i s = _mm512_setzero_si512();
  BRAID_EACH_SUM(BRAID_DECLARE)
  const __m512i a = _mm512_set1_epi8(static_cast<char>(*sink + 3)), b = a;
  for (int64_t r = 0; r < rounds; ++r) {
#define BRAID_STEP(s)               \
  s = _mm512_dpbusd_epi32(s, a, b); \
  forget(s);
    BRAID_EACH_SUM(BRAID_STEP)
  }
  __m512i all = _mm512_setzero_si512();
#define BRAID_FOLD(s) all = _mm512_xor_si512(all, s);
  BRAID_EACH_SUM(BRAID_FOLD)
  *sink += static_cast<float>(_mm512_reduce_add_epi32(all)) * 0;
#undef BRAID_DECLARE
#undef BRAID_STEP
#undef BRAID_FOLD
}
constexpr int64_t kInt8Operations = 2 * 64 * kSums;

void bf16(int64_t rounds, float* sink) {
#define BRAID_DECLARE(s) __m512 s = _mm512_setzero_ps();
  BRAID_EACH_SUM(BRAID_DECLARE)
  const __m512bh a = (__m512bh)_mm512_set1_epi16(static_cast<short>(*sink + 0x3f00)), b = a;
  for (int64_t r = 0; r < rounds; ++r) {
#define BRAID_STEP(s)            \
  s = _mm512_dpbf16_ps(s, a, b); \
  forget(s);
    BRAID_EACH_SUM(BRAID_STEP)
  }
  __m512 all = _mm512_setzero_ps();
#define BRAID_FOLD(s) all += s;
  BRAID_EACH_SUM(BRAID_FOLD)
  *sink += reduce_add((Vf)all) * 0;
#undef BRAID_DECLARE
#undef BRAID_STEP
#undef BRAID_FOLD
}
constexpr int64_t kBF16Operations = 2 * 32 * kSums;

#elif defined(BRAID_ISA_avx2)

// Products of small codes may be added in 16 bits a few times before they are widened: the most
// that any kernel can do.
void int8(int64_t rounds, float* sink) {
#define BRAID_DECLARE(s) __m256i s = _mm256_setzero_si256();
  BRAID_EACH_SUM(BRAID_DECLARE)
  __m256i a = _mm256_set1_epi8(static_cast<char>(*sink + 3));
  const __m256i b = a;
  for (int64_t r = 0; r < rounds; ++r) {
#define BRAID_STEP(s)                                  \
  forget(a);                                           \
  s = _mm256_add_epi16(s, _mm256_maddubs_epi16(a, b)); \
  forget(s);
    BRAID_EACH_SUM(BRAID_STEP)
  }
  __m256i all = _mm256_setzero_si256();
#define BRAID_FOLD(s) all = _mm256_xor_si256(all, s);
  BRAID_EACH_SUM(BRAID_FOLD)
  *sink += static_cast<float>(_mm256_extract_epi16(all, 0)) * 0;
#undef BRAID_DECLARE
#undef BRAID_STEP
#undef BRAID_FOLD
}
constexpr int64_t kInt8Operations = 2 * 32 * kSums;

#else

typedef int16_t Vs __attribute__((vector_size(16)));

void int8(int64_t rounds, float* sink) {
#define BRAID_DECLARE(s) Vs s = Vs{};
  BRAID_EACH_SUM(BRAID_DECLARE)
  Vs a = Vs{} + static_cast<int16_t>(*sink + 3);
  const Vs b = a;
  for (int64_t r = 0; r < rounds; ++r) {
#define BRAID_STEP(s) \
  forget(a);          \
  s += a * b;         \
  forget(s);
    BRAID_EACH_SUM(BRAID_STEP)
  }
  Vs all = Vs{};
#define BRAID_FOLD(s) all ^= s;
  BRAID_EACH_SUM(BRAID_FOLD)
  *sink += static_cast<float>(all[0]) * 0;
#undef BRAID_DECLARE
#undef BRAID_STEP
#undef BRAID_FOLD
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

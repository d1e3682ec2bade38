#include "ops/cpu/simd.h"
#include "ops/linear/linear_kernels.h"

namespace braid::BRAID_ISA {
namespace {

// Nearest integer, ties to even, for |x| below 2^22.
BRAID_INLINE Vi round_to_int(Vf x) {
  const Vf magic = splat(12582912.0f);  // 1.5 · 2^23
  return (Vi)(x + magic) - (Vi)magic;
}

void quantize(const float* x, int64_t cols, int8_t* codes, float* scales, int32_t* sums) {
  constexpr int kVectors = 32 / kLanes;
  for (int64_t block = 0; block < cols / 32; ++block, x += 32, codes += 32) {
    Vf values[kVectors];
    Vf peak{}, spoiled{};
    for (int i = 0; i < kVectors; ++i) {
      values[i] = load(x + i * kLanes);
      peak = max(peak, (Vf)((Vi)values[i] & 0x7fffffff));
      spoiled += values[i] * splat(0.0f);  // NaN if a value is not finite
    }
    const float largest = reduce_max(peak);
    const float not_finite = reduce_add(spoiled);
    const bool usable = not_finite == 0.0f && largest >= 0x1p-100f;
    scales[block] = usable ? largest / 127.0f : not_finite;
    const Vf inverse = splat(usable ? 127.0f / largest : 0.0f);
    int32_t rounded[32];
    for (int i = 0; i < kVectors; ++i) {
      const Vi code = usable ? round_to_int(values[i] * inverse) : Vi{};
      std::memcpy(rounded + i * kLanes, &code, sizeof(code));
    }
    for (int half = 0; half < 2; ++half) {
      int32_t sum = 0;
      for (int i = 0; i < 16; ++i) {
        codes[16 * half + i] = static_cast<int8_t>(rounded[16 * half + i]);
        sum += rounded[16 * half + i];
      }
      sums[2 * block + half] = sum;
    }
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

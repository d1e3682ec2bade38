#include "ops/norm/rms_norm_kernels.h"

#include "ops/cpu/simd_math.h"

namespace braid::BRAID_ISA {
namespace {

// (mean(x²) + epsilon)^(−1/2)
float inverse_rms(const float* x, float epsilon, int64_t width) {
  constexpr int64_t kStep = 4 * kLanes;
  Vf sums[4] = {};
  int64_t i = 0;
  for (; i + kStep <= width; i += kStep) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const Vf v = load(x + i + j * kLanes);
      sums[j] = fma(v, v, sums[j]);
    }
  }
  for (; i + kLanes <= width; i += kLanes) {
    const Vf v = load(x + i);
    sums[0] = fma(v, v, sums[0]);
  }
  if (i < width) {
    const Vf v = load_partial(x + i, width - i);
    sums[1] = fma(v, v, sums[1]);
  }
  const float sum = reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
  const float mean = sum / static_cast<float>(width);
  return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(mean + epsilon)));
}

template <bool kAdd>
void run(const float* x, const float* weight, float epsilon, int64_t width, float* y) {
  const Vf factor = splat(inverse_rms(x, epsilon, width));
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    Vf v = load(x + i) * factor;
    if (weight != nullptr) v = v * load(weight + i);
    if constexpr (kAdd) v = load(y + i) + v;
    store(y + i, v);
  }
  if (i < width) {
    const int64_t n = width - i;
    Vf v = load_partial(x + i, n) * factor;
    if (weight != nullptr) v = v * load_partial(weight + i, n);
    if constexpr (kAdd) v = load_partial(y + i, n) + v;
    store_partial(y + i, n, v);
  }
}

void run_gated(const float* x, const float* gate, const float* weight, float epsilon, int64_t width,
               float* y) {
  const Vf factor = splat(inverse_rms(x, epsilon, width));
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const Vf v = load(x + i) * factor * load(weight + i);
    store(y + i, v * silu(load(gate + i)));
  }
  if (i < width) {
    const int64_t n = width - i;
    const Vf v = load_partial(x + i, n) * factor * load_partial(weight + i, n);
    store_partial(y + i, n, v * silu(load_partial(gate + i, n)));
  }
}

}  // namespace

const RmsNormKernels kRmsNormKernels = {&run<false>, &run<true>, &run_gated};

}  // namespace braid::BRAID_ISA

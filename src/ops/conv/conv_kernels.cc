#include "ops/conv/conv_kernels.h"

#include "ops/cpu/simd_math.h"

namespace braid::BRAID_ISA {
namespace {

// Elements 0, 2, 4, … of a and b, or 1, 3, 5, …
BRAID_INLINE Vf every_second(Vf a, Vf b, int32_t first) {
  return __builtin_shuffle(a, b, 2 * lane_index() + first);
}

void transpose_taps(const float* weight, int64_t width, int64_t n, float* taps) {
  int64_t c = 0;
  if (width == 4) {
    for (; c + kLanes <= n; c += kLanes) {
      const float* w = weight + c * 4;
      const Vf a = load(w), b = load(w + kLanes), d = load(w + 2 * kLanes),
               e = load(w + 3 * kLanes);
      const Vf even_low = every_second(a, b, 0), even_high = every_second(d, e, 0);
      const Vf odd_low = every_second(a, b, 1), odd_high = every_second(d, e, 1);
      store(taps + c, every_second(even_low, even_high, 0));
      store(taps + kConvChannels + c, every_second(odd_low, odd_high, 0));
      store(taps + 2 * kConvChannels + c, every_second(even_low, even_high, 1));
      store(taps + 3 * kConvChannels + c, every_second(odd_low, odd_high, 1));
    }
  }
  for (; c < n; ++c) {
    for (int64_t j = 0; j < width; ++j) taps[j * kConvChannels + c] = weight[c * width + j];
  }
}

template <int kWidth>
BRAID_INLINE void convolve(const float* const* inputs, const float* taps, int64_t width, int64_t n,
                           float* y) {
  if (kWidth > 0) width = kWidth;
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) {
    Vf sum = load(taps + c) * load(inputs[0] + c);
    for (int64_t j = 1; j < width; ++j) {
      sum = fma(load(taps + j * kConvChannels + c), load(inputs[j] + c), sum);
    }
    store(y + c, silu(sum));
  }
  if (c < n) {
    const int64_t rest = n - c;
    Vf sum = load_partial(taps + c, rest) * load_partial(inputs[0] + c, rest);
    for (int64_t j = 1; j < width; ++j) {
      sum = fma(load_partial(taps + j * kConvChannels + c, rest), load_partial(inputs[j] + c, rest),
                sum);
    }
    store_partial(y + c, rest, silu(sum));
  }
}

void row(const float* const* inputs, const float* taps, int64_t width, int64_t n, float* y) {
  if (width == 4) {
    convolve<4>(inputs, taps, width, n, y);
  } else {
    convolve<0>(inputs, taps, width, n, y);
  }
}

}  // namespace

const ConvKernels kConvKernels = {&transpose_taps, &row};

}  // namespace braid::BRAID_ISA

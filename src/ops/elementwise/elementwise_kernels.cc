#include "ops/elementwise/elementwise_kernels.h"

#include "ops/cpu/simd_math.h"

namespace braid::BRAID_ISA {
namespace {

// gelu(x) = ½·x·(1 + tanh(u)) = x / (1 + e^(−2u)): no cancellation for negative x, and an overflow
// of x³ or of the exponential ends in the right limit.
BRAID_INLINE Vf gelu(Vf x) {
  constexpr float kMinusTwoRootTwoOverPi = -1.5957691216f;
  const Vf cubic = fma(splat(0.044715f), x * x, splat(1));
  return x / (exp(x * kMinusTwoRootTwoOverPi * cubic) + 1.0f);
}

void gelu_tanh_mul(const float* gate, const float* up, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, gelu(load(gate + i)) * load(up + i));
  if (i < n) {
    const int64_t rest = n - i;
    store_partial(y + i, rest, gelu(load_partial(gate + i, rest)) * load_partial(up + i, rest));
  }
}

void silu_mul(const float* gate, const float* up, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, silu(load(gate + i)) * load(up + i));
  if (i < n) {
    const int64_t rest = n - i;
    store_partial(y + i, rest, silu(load_partial(gate + i, rest)) * load_partial(up + i, rest));
  }
}

void sigmoid_mul(float* x, const float* gate, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, load(x + i) * sigmoid(load(gate + i)));
  if (i < n) {
    const int64_t rest = n - i;
    store_partial(x + i, rest, load_partial(x + i, rest) * sigmoid(load_partial(gate + i, rest)));
  }
}

void add_scaled(float* x, const float* y, float factor, int64_t n) {
  int64_t i = 0;
  const Vf f = splat(factor);
  for (; i + kLanes <= n; i += kLanes) store(x + i, fma(f, load(y + i), load(x + i)));
  if (i < n) {
    const int64_t rest = n - i;
    store_partial(x + i, rest, fma(f, load_partial(y + i, rest), load_partial(x + i, rest)));
  }
}

void add(float* x, const float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, load(x + i) + load(y + i));
  for (; i < n; ++i) x[i] += y[i];
}

void scale(float* x, float factor, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, load(x + i) * factor);
  for (; i < n; ++i) x[i] *= factor;
}

void softcap(float* x, float cap, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, tanh(load(x + i) / cap) * cap);
  if (i < n) {
    const int64_t rest = n - i;
    store_partial(x + i, rest, tanh(load_partial(x + i, rest) / cap) * cap);
  }
}

}  // namespace

const ElementwiseKernels kElementwiseKernels = {
    &gelu_tanh_mul, &silu_mul, &sigmoid_mul, &add_scaled, &add, &scale, &softcap};

}  // namespace braid::BRAID_ISA

#include "ops/moe/moe_kernels.h"

#include "ops/cpu/simd_math.h"

namespace braid::BRAID_ISA {
namespace {

// The product is rounded before it is added, as the reference does.
template <bool kAdd>
void scaled(const float* y, float weight, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Vf v = load(y + i) * weight;
    if constexpr (kAdd) v = load(out + i) + v;
    store(out + i, v);
  }
  for (; i < n; ++i) {
    float v = y[i] * weight;
    if constexpr (kAdd) v = out[i] + v;
    out[i] = v;
  }
}

}  // namespace

const MoeKernels kMoeKernels = {&scaled<false>, &scaled<true>};

}  // namespace braid::BRAID_ISA

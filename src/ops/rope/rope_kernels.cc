#include "ops/rope/rope_kernels.h"

#include "ops/cpu/simd_math.h"

namespace braid::BRAID_ISA {
namespace {

// Products are rounded before they are added, as the reference does.
void rotate(float* x, int64_t heads, int64_t head_dim, int64_t pairs, int64_t distance,
            const float* cos, const float* sin) {
  for (int64_t head = 0; head < heads; ++head, x += head_dim) {
    float* const y = x + distance;
    int64_t i = 0;
    for (; i + kLanes <= pairs; i += kLanes) {
      const Vf a = load(x + i), b = load(y + i), c = load(cos + i), s = load(sin + i);
      store(x + i, a * c - b * s);
      store(y + i, b * c + a * s);
    }
    if (i < pairs) {
      const int64_t n = pairs - i;
      const Vf a = load_partial(x + i, n), b = load_partial(y + i, n);
      const Vf c = load_partial(cos + i, n), s = load_partial(sin + i, n);
      store_partial(x + i, n, a * c - b * s);
      store_partial(y + i, n, b * c + a * s);
    }
  }
}

}  // namespace

const RopeKernels kRopeKernels = {&rotate};

}  // namespace braid::BRAID_ISA

#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace braid {

struct RopeKernels {
  // One token: rotates pairs (i, i + distance), i < pairs, of `heads` heads of head_dim elements.
  void (*rotate)(float* x, int64_t heads, int64_t head_dim, int64_t pairs, int64_t distance,
                 const float* cos, const float* sin);
};

BRAID_DECLARE_KERNELS(RopeKernels, kRopeKernels)

}  // namespace braid

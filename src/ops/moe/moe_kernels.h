#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace braid {

struct MoeKernels {
  // out = weight · y, or out += weight · y; n elements.
  void (*scaled_copy)(const float* y, float weight, float* out, int64_t n);
  void (*scaled_add)(const float* y, float weight, float* out, int64_t n);
};

BRAID_DECLARE_KERNELS(MoeKernels, kMoeKernels)

}  // namespace braid

#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace braid {

// All work on n contiguous elements; what an element becomes does not depend on its place.
struct ElementwiseKernels {
  void (*gelu_tanh_mul)(const float* gate, const float* up, float* y, int64_t n);
  void (*add)(float* x, const float* y, int64_t n);
  void (*scale)(float* x, float factor, int64_t n);
  void (*softcap)(float* x, float cap, int64_t n);
};

BRAID_DECLARE_KERNELS(ElementwiseKernels, kElementwiseKernels)

}  // namespace braid

#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace braid {

// All work on n contiguous elements; what an element becomes does not depend on its place.
struct ElementwiseKernels {
  void (*gelu_tanh_mul)(const float* gate, const float* up, float* y, int64_t n);
  void (*silu_mul)(const float* gate, const float* up, float* y, int64_t n);
  void (*sigmoid_mul)(float* x, const float* gate, int64_t n);
  void (*add_scaled)(float* x, const float* y, float factor, int64_t n);
  void (*add)(float* x, const float* y, int64_t n);
  void (*scale)(float* x, float factor, int64_t n);
  void (*softcap)(float* x, float cap, int64_t n);
};

BRAID_DECLARE_KERNELS(ElementwiseKernels, kElementwiseKernels)

}  // namespace braid

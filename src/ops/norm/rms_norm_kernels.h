#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace braid {

struct RmsNormKernels {
  // One row; weight may be null; y may be x.
  void (*norm)(const float* x, const float* weight, float epsilon, int64_t width, float* y);
  // residual += the same.
  void (*add_norm)(const float* x, const float* weight, float epsilon, int64_t width,
                   float* residual);
  // y = the same ⊙ silu(gate); weight is not null.
  void (*gated_norm)(const float* x, const float* gate, const float* weight, float epsilon,
                     int64_t width, float* y);
};

BRAID_DECLARE_KERNELS(RmsNormKernels, kRmsNormKernels)

}  // namespace braid

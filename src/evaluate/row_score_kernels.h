#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace braid {

// Sums over rows of logits, in float64 throughout. The exponential is within 2 ulp; terms below
// e^-700 count as that.
struct RowScoreKernels {
  // Σ exp(x − shift), shift ≥ every x.
  double (*sum_exp)(const float* x, int64_t n, double shift);
  // sums[0] = Σ exp(p − p_shift), sums[1] = Σ exp(q − q_shift),
  // sums[2] = Σ exp(p − p_shift) · (p − q). The first two are added in the same order.
  void (*compare)(const float* p, const float* q, int64_t n, double p_shift, double q_shift,
                  double* sums);
};

BRAID_DECLARE_KERNELS(RowScoreKernels, kRowScoreKernels)

}  // namespace braid

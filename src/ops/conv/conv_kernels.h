#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace braid {

inline constexpr int64_t kMaxConvWidth = 8;
// Channels that a task takes.
inline constexpr int64_t kConvChannels = 512;

struct ConvKernels {
  // taps[j][c] = weight[c, j] of n channels; rows of taps are kConvChannels apart.
  void (*transpose_taps)(const float* weight, int64_t width, int64_t n, float* taps);
  // y = silu(Σ_j taps[j] ⊙ inputs[j]) over n channels.
  void (*row)(const float* const* inputs, const float* taps, int64_t width, int64_t n, float* y);
};

BRAID_DECLARE_KERNELS(ConvKernels, kConvKernels)

}  // namespace braid

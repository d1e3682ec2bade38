#pragma once

#include "benchmark/ceilings.h"

namespace braid::cuda {

// Device memory that measuring takes while it lasts, at most.
inline constexpr int64_t kCeilingBytes = int64_t{5} << 30;

// What a CUDA device can do at best: a streaming read of a few gigabytes, and the matrix library's
// products of 8192³ (bf16, int8) and 4096³ (f32), best of several. Takes about a second. Throws
// Error in a build without CUDA.
Ceilings measure_device_ceilings(int device);

}  // namespace braid::cuda

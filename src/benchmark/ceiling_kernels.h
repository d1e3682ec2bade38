#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace braid {

// Loops that do nothing but read, multiply and add, as fast as an instruction set allows.
struct CeilingKernels {
  // Reads kReadStreams stretches side by side; `bytes` is a multiple of kReadStreams · 256.
  void (*read)(const std::byte* data, int64_t bytes, float* sink);
  // One round of each is so many multiplications and additions.
  void (*int8)(int64_t rounds, float* sink);
  void (*bf16)(int64_t rounds, float* sink);
  void (*f32)(int64_t rounds, float* sink);
  int64_t int8_operations;
  int64_t bf16_operations;
  int64_t f32_operations;
};

inline constexpr int kReadStreams = 4;

BRAID_DECLARE_KERNELS(CeilingKernels, kCeilingKernels)

}  // namespace braid

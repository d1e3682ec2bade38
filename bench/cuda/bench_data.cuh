#pragma once

// What benches of products work on, and how fast this machine reads.

#include <cuda_runtime.h>

#include <algorithm>
#include <random>
#include <vector>

#include "chain_timer.h"
#include "ops/linear/cuda/tensor_core.cuh"
#include "tensor/cuda/stream_state.h"
#include "tensor/stream.h"

namespace braid::cuda {

// Small numbers as pairs of bfloat16: signs and mantissas vary.
static __global__ void fill_small(uint32_t* p, int64_t n) {
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ static_cast<uint32_t>(i >> 32);
    h ^= h >> 16;
    h *= 0x85ebca6b;
    h ^= h >> 13;
    h *= 0xc2b2ae35;
    h ^= h >> 16;
    p[i] = (h & 0x807f807fu) | 0x3c003c00u | (h >> 8 & 0x00800080u);
  }
}

static __global__ void read_all(const uint4* p, int64_t n, uint32_t* sink) {
  uint32_t sum = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  for (; i + 3 * step < n; i += 4 * step) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint4 v = load_streamed(reinterpret_cast<const uint8_t*>(p + i + k * step));
      sum += v.x ^ v.y ^ v.z ^ v.w;
    }
  }
  if (sum == 0x12345678) *sink = sum;
}

// Bytes a second, of a stretch of memory that no cache holds.
inline double measure_read_rate(Stream& stream, const std::byte* memory, size_t bytes,
                                uint32_t* sink) {
  cudaStream_t handle = stream.cuda().handle();
  double best = 1e30;
  for (int i = 0; i < 3; ++i) {
    best = std::min(best, median_seconds(handle, {1, 5}, [&] {
                      read_all<<<264, 512, 0, handle>>>(reinterpret_cast<const uint4*>(memory),
                                                        static_cast<int64_t>(bytes / 16), sink);
                    }));
  }
  return static_cast<double>(bytes) / best;
}

// The offsets of experts when each of `tokens` picks `picks` different ones at random.
inline std::vector<int32_t> random_offsets(int64_t tokens, int64_t picks, int64_t experts) {
  std::mt19937 engine(7);
  std::vector<int32_t> counts(static_cast<size_t>(experts)), order(counts.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  for (int64_t t = 0; t < tokens; ++t) {
    std::shuffle(order.begin(), order.end(), engine);
    for (int64_t i = 0; i < picks; ++i) ++counts[static_cast<size_t>(order[i])];
  }
  std::vector<int32_t> offsets(1, 0);
  for (const int32_t count : counts) offsets.push_back(offsets.back() + count);
  return offsets;
}

}  // namespace braid::cuda

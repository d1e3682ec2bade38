#pragma once

// What a block of weight_stream.cuh keeps in shared memory: ring, barriers, lists, sums.

#include <cstdint>

#include "ops/linear/cuda/weight_stream.h"
#include "ops/moe/cuda/few_choices.cuh"

namespace braid::cuda {

inline constexpr int kSetWarps = 8;
inline constexpr int kMostSlots = 12;
inline constexpr int kBoxAlignment = 1024;

// Tokens of one expert, or of all, that meet its weights together.
struct TokenTile {
  uint16_t expert, count;
  int32_t begin;
};

// Units whose sums lie in shared memory until they are added up: that takes less time than the
// products of the next one.
inline constexpr int kStreamBuffers = 1;
inline constexpr int kMostAdders = 4;
// Pairs of an expert and a token whose tokens are listed in shared memory, too.
inline constexpr int kMostListedPairs = 1024;

struct StreamBarriers {
  uint64_t full[kMostSlots], empty[kMostSlots];
  uint64_t sums_empty[kStreamBuffers];
  uint64_t listed, dealt, counted;  // experts; the last phase's units; all that others wait for
  alignas(16) int warp_tiles[kMostAdders];
  int num_listed;
};

template <typename Source>
__host__ __device__ constexpr int slot_bytes() {
  return kSetWarps * Source::kPieceBytes + Source::kTailWarps * Source::kTailBytes;
}
// Of the ring's weights; boxes of inputs follow.
template <typename Source>
__host__ __device__ constexpr int ring_bytes(int slots) {
  return (slots * slot_bytes<Source>() + kBoxAlignment - 1) / kBoxAlignment * kBoxAlignment;
}
// Sums of a unit, in floats: [sets][column warps][tokens][rows].
template <typename Source>
__host__ __device__ constexpr int partial_stride(int row_warps) {
  static_assert(Source::kRowPad % 4 == 0);
  return Source::kRows * row_warps + Source::kRowPad;
}
template <typename Source>
__host__ __device__ constexpr int partial_floats(int row_warps, int tokens) {
  return Source::kSets * kSetWarps / row_warps * tokens * partial_stride<Source>(row_warps);
}
// Behind those, scales of the rows of a unit and of the next one.
template <typename Source>
__host__ __device__ constexpr int scale_floats(int row_warps) {
  return Source::kTailBytes > 0 ? 2 * Source::kRows * row_warps : 0;
}

// Sums of neighbouring rows.
template <typename Sum>
struct alignas(16) FourSums {
  Sum of[4];
};

// Of adding warps that choose experts.
struct FewRoom {
  ChoiceRoom rooms[kMostAdders];
  int keys[kMostFewPairs], sorted[kMostFewPairs];
};
static_assert(sizeof(FewRoom) % alignof(FourSums<float>) == 0);  // which follow

}  // namespace braid::cuda

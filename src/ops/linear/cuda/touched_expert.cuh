#pragma once

#include "ops/cuda/launch.cuh"

namespace braid::cuda {

// Tokens [begin, end) of an expert.
struct ExpertTokens {
  int expert, begin, end;
};

// The tile-th tile, counting through the experts in order, of at most `tile_tokens` neighbouring
// tokens of one expert each; expert -1 past the last one. tile_tokens 0: one tile holds all tokens
// of an expert. All kFindThreads threads of a block call it, once, and get the same.
inline constexpr int kFindThreads = 256;
__device__ __forceinline__ ExpertTokens find_tile(const int32_t* offsets, int experts, int tile,
                                                  int tile_tokens) {
  constexpr int kWarps = kFindThreads / kWarp;
  __shared__ int warp_tiles[kWarps];
  __shared__ ExpertTokens found;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto tiles_of = [&](int begin, int end) {
    return tile_tokens == 0 ? (end > begin ? 1 : 0) : (end - begin + tile_tokens - 1) / tile_tokens;
  };
  // A thread has neighbouring experts.
  const int each = (experts + kFindThreads - 1) / kFindThreads;
  const int first = min(static_cast<int>(threadIdx.x) * each, experts);
  const int last = min(first + each, experts);
  int tiles = 0;
  for (int e = first; e < last; ++e) tiles += tiles_of(offsets[e], offsets[e + 1]);
  int through = tiles;  // tiles of this thread and the ones before
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, through, distance);
    if (lane >= distance) through += other;
  }
  if (lane == kWarp - 1) warp_tiles[warp] = through;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) through += w < warp ? warp_tiles[w] : 0;
  int before = through - tiles;
  if (tile >= before && tile < through) {
    for (int e = first; e < last; ++e) {
      const int begin = offsets[e], end = offsets[e + 1], count = tiles_of(begin, end);
      if (tile < before + count) {
        const int start = begin + (tile - before) * tile_tokens;
        found = {e, start, tile_tokens == 0 ? end : min(start + tile_tokens, end)};
        break;
      }
      before += count;
    }
  }
  if (threadIdx.x == kFindThreads - 1 && tile >= through) found = {-1, 0, 0};
  __syncthreads();
  return found;
}

}  // namespace braid::cuda

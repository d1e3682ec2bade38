#pragma once

#include "ops/cuda/launch.cuh"

namespace braid::cuda {

// Tokens [begin, end) of an expert.
struct ExpertTokens {
  int expert, begin, end;
};

// The tile-th tile, counting through the experts in order, of at most `tile_tokens` neighbouring
// tokens of one expert each; expert -1 past the last one. tile_tokens 0: one tile holds all tokens
// of an expert. All lanes of a warp call it and get the same.
__device__ __forceinline__ ExpertTokens find_tile(const int32_t* offsets, int experts, int tile,
                                                  int tile_tokens) {
  const int lane = threadIdx.x % kWarp;
  int seen = 0;
  for (int first = 0; first < experts; first += kWarp) {
    const int expert = first + lane;
    const int begin = expert < experts ? offsets[expert] : 0;
    const int end = expert < experts ? offsets[expert + 1] : 0;
    const int tiles =
        tile_tokens == 0 ? (end > begin ? 1 : 0) : (end - begin + tile_tokens - 1) / tile_tokens;
    int through = tiles;  // tiles of this and the lanes before
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, through, distance);
      if (lane >= distance) through += other;
    }
    const int before = seen + through - tiles;
    const bool mine = tile >= before && tile < before + tiles;
    const unsigned found = __ballot_sync(0xffffffffu, mine);
    if (found != 0) {
      const int source = __ffs(static_cast<int>(found)) - 1;
      const int start = tile_tokens == 0 ? begin : begin + (tile - before) * tile_tokens;
      const int stop = tile_tokens == 0 ? end : min(start + tile_tokens, end);
      return {first + source, __shfl_sync(0xffffffffu, start, source),
              __shfl_sync(0xffffffffu, stop, source)};
    }
    seen += __shfl_sync(0xffffffffu, through, kWarp - 1);
  }
  return {-1, 0, 0};
}

}  // namespace braid::cuda

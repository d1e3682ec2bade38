#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace braid {

// Keys are visited in tiles of this many, aligned to absolute positions.
inline constexpr int kTileKeys = 32;
// Queries (rows × heads of one KV head) that share the reading of a tile.
inline constexpr int kTileQueries = 32;
// A tile's keys lie in up to this many pages (pages hold 8 tokens or more).
inline constexpr int kMaxSegments = kTileKeys / 8;

// One tile of keys and values of one KV head. Segment s holds the keys
// [s << segment_shift, (s + 1) << segment_shift) of the tile, head_dim elements each, contiguous.
struct KeyTile {
  const void* keys[kMaxSegments];
  const void* values[kMaxSegments];
  int segment_shift;
};

// Queries that meet the same keys, and their running softmax over the tiles so far: the largest
// score, the sum of e^(score − largest), and the values weighted likewise.
struct QueryTile {
  int num_queries;
  int64_t head_dim;
  float scale;
  const float* queries[kTileQueries];  // [head_dim] each
  // Keys of the current tile that a query sees: [begin, end), within [0, kTileKeys].
  int32_t begin[kTileQueries];
  int32_t end[kTileQueries];
  float largest[kTileQueries];
  float sum[kTileQueries];
  float* weighted;  // [num_queries, head_dim]
  // Scratch.
  float* probabilities;  // [kTileQueries, kTileKeys]
  float* expanded;       // [2, kTileKeys, head_dim]: keys and values widened to float32
};

struct AttentionKernels {
  // Folds one tile into the running softmax; queries that see none of its keys stay as they are.
  // What happens to a query does not depend on the others.
  void (*fold_f32)(QueryTile& queries, const KeyTile& tile);
  void (*fold_bf16)(QueryTile& queries, const KeyTile& tile);
  // Folds the softmax over a later range of keys into one over earlier keys.
  void (*merge)(float* largest, float* sum, float* weighted, float other_largest, float other_sum,
                const float* other_weighted, int64_t head_dim);
  // out = weighted / sum
  void (*finish)(const float* weighted, float sum, float* out, int64_t head_dim);
  // Rounds n floats to bfloat16 (to: uint16_t bit patterns).
  void (*to_bf16)(const float* from, void* to, int64_t n);
};

BRAID_DECLARE_KERNELS(AttentionKernels, kAttentionKernels)

}  // namespace braid

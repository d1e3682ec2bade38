#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace braid {

// Keys are visited in tiles of this many, aligned to absolute positions.
inline constexpr int kTileKeys = 64;
// Queries (rows × heads of one KV head) that share the reading of a tile.
inline constexpr int kTileQueries = 48;
// A tile's keys lie in up to this many pages (pages hold 8 tokens or more).
inline constexpr int kMaxSegments = kTileKeys / 8;

// Kernels work on rows of queries and results that are padded to a multiple of this.
inline constexpr int64_t kDimStep = 16;
inline constexpr int64_t padded_dim(int64_t head_dim) {
  return (head_dim + kDimStep - 1) / kDimStep * kDimStep;
}

// One tile of keys and values of one KV head. Segment s holds the keys
// [s << segment_shift, (s + 1) << segment_shift) of the tile, head_dim elements each, contiguous.
struct KeyTile {
  const void* keys[kMaxSegments];
  const void* values[kMaxSegments];
  const float* key_scales[kMaxSegments];  // int8 only: one for each key of the segment
  const float* value_scales[kMaxSegments];
  int segment_shift;
};

// Queries that meet the same keys, and their running softmax over the tiles so far: the largest
// score, the sum of e^(score − largest), and the values weighted likewise.
struct QueryTile {
  int num_queries;
  int64_t head_dim;
  float scale;
  const float* queries;  // [num_queries, padded_dim(head_dim)], zeros behind head_dim
  // Keys of the current tile that a query sees: [begin, end), within [0, kTileKeys].
  int32_t begin[kTileQueries];
  int32_t end[kTileQueries];
  float largest[kTileQueries];
  float sum[kTileQueries];
  float* weighted;  // [num_queries, padded_dim(head_dim)]
  // Scratch.
  float* probabilities;  // [kTileQueries, kTileKeys]
  float* packed;         // [packed_floats(head_dim)]
};

// Room for a few keys, or for a strip of a tile's values, as float32.
inline constexpr int64_t packed_floats(int64_t head_dim) {
  constexpr int64_t kStrip = kTileKeys * 64;
  const int64_t keys = 8 * padded_dim(head_dim);
  return keys > kStrip ? keys : kStrip;
}

struct AttentionKernels {
  // Folds one tile into the running softmax; queries that see none of its keys stay as they are.
  // What happens to a query does not depend on the others. `next`: the tile after it, whose keys
  // are asked for meanwhile, or null.
  using Fold = void (*)(QueryTile& queries, const KeyTile& tile, const KeyTile* next);
  Fold fold_f32;
  Fold fold_bf16;
  Fold fold_i8;
  // Folds the softmax over a later range of keys into one over earlier keys.
  void (*merge)(float* largest, float* sum, float* weighted, float other_largest, float other_sum,
                const float* other_weighted, int64_t head_dim);
  // out = weighted / sum
  void (*finish)(const float* weighted, float sum, float* out, int64_t head_dim);
  // Rounds n floats to bfloat16 (to: uint16_t bit patterns).
  void (*to_bf16)(const float* from, void* to, int64_t n);
  // n floats as codes and their scale; see ops/attention/paged_kv.h. static_scale 0: their own.
  void (*to_i8)(const float* from, int8_t* to, float* scale, float static_scale, int64_t n);
};

BRAID_DECLARE_KERNELS(AttentionKernels, kAttentionKernels)

}  // namespace braid

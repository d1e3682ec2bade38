#pragma once

#include <cstdint>

#include "ops/attention/cuda/attention_call.h"

namespace braid::cuda {

// Query n of a sequence and KV head is row n / group, head n % group of the KV head's group.
struct QueryTile {
  int32_t sequence;
  int32_t first_query;
};

// Queries of a tile. Sequences with few queries a KV head are split: a tile of theirs has several
// blocks, each with a part of the keys.
struct QueryTileSizes {
  int most_split;  // queries a KV head of a sequence that is split; 0: none is
  int split;       // of a tile of such a sequence
  int whole;       // of a tile of the others
};

// The tiles of a call, for all of its KV heads.
class QueryTiles {
 public:
  QueryTiles(const AttentionCall& call, const QueryTileSizes& sizes);

  int num_split() const { return num_split_; }
  int num_whole() const { return num_whole_; }
  bool empty() const { return num_split_ + num_whole_ == 0; }
  // Queries of the largest split tile.
  int most_split_queries() const { return most_split_queries_; }

  // In device memory until the stream's next step.
  struct Uploaded {
    const QueryTile* split;
    const QueryTile* whole;  // those of most keys first
    int32_t* arrivals;       // [split tiles, kv_heads], zeros; kernels leave zeros
  };
  // The layers of a step share one copy of each table, so those with different sizes need different
  // ones.
  enum class Table : uint8_t { kTiles = 1, kLargeTiles, kSpans, kWholeSpans, kCount };
  Uploaded upload(Table table) const;

 private:
  const AttentionCall& call_;
  QueryTileSizes sizes_;
  int num_split_ = 0, num_whole_ = 0, most_split_queries_ = 1;
};

// The most keys that rows next to each other see together. By what the tables hold, not by
// positions: a graph must do for longer texts, too.
int64_t most_visible_keys(const AttentionCall& call, int rows);

}  // namespace braid::cuda

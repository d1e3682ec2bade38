#pragma once

#include <cstdint>
#include <span>

#include "ops/attention/attention_kernels.h"
#include "ops/attention/paged_kv.h"
#include "tensor/workspace.h"

namespace braid {

// A row's softmax is computed over stretches of this many keys, aligned to absolute positions, and
// the stretches are merged in order. The split is the same whoever computes it, so threads may
// share a row without changing its result.
inline constexpr int64_t kSplitKeys = 1024;

// Keys [begin, end) by absolute position.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Up to kTileQueries neighbouring queries of one KV head of one sequence; query n of a sequence is
// row n / group, head n % group of the KV head's group. Either one thread does the whole (split <
// 0), or one split of it: then the last one to finish merges.
struct AttentionItem {
  int32_t sequence;
  int32_t kv_head;
  int32_t num_queries;
  int32_t split;  // absolute (position / kSplitKeys), or -1 for all
  int64_t first_query;
  int64_t partials;   // split >= 0: index of the first split's partial results, in floats
  int32_t countdown;  // split >= 0: index of the counter of unfinished splits
};

struct AttentionPlan {
  std::span<AttentionItem> items;
  std::span<int32_t> countdowns;
  std::span<float> partials;
};

// The keys that row `row` of a sequence sees, its own included; window 0: all before it.
KeyRange visible_keys(const SequenceRows& sequence, int64_t row, int64_t window);

// The keys that queries [first, first + count) see between them.
KeyRange visible_keys(const SequenceRows& sequence, int64_t first_query, int64_t num_queries,
                      int64_t group, int64_t window);

inline int64_t first_split(KeyRange keys) { return keys.begin / kSplitKeys; }
inline int64_t num_splits(KeyRange keys) {
  return (keys.end - 1) / kSplitKeys - keys.begin / kSplitKeys + 1;
}

// What one split of an item leaves: largest [queries], sum [queries], weighted [queries,
// padded_dim(head_dim)].
inline int64_t partial_floats(int64_t num_queries, int64_t head_dim) {
  return num_queries * (padded_dim(head_dim) + 2);
}

struct AttentionShape {
  int64_t kv_heads = 1;
  int64_t group = 1;  // query heads per KV head
  int64_t head_dim = 0;
  int64_t window = 0;
};

// Decides who computes what; results do not depend on it. The arrays live in the workspace, which
// is used for partial results only as far as it has room to spare.
AttentionPlan plan_attention(Workspace& workspace, std::span<const SequenceRows> sequences,
                             const AttentionShape& shape, int num_threads);

}  // namespace braid

#include "ops/attention/attention_plan.h"

#include <algorithm>

#include "ops/attention/attention_kernels.h"

namespace braid {
namespace {

// Partial results of splits take at most this much, and at most half of the room left.
constexpr int64_t kMaxPartialBytes = int64_t{64} << 20;
// Items per thread at which the load is taken to be balanced.
constexpr int64_t kItemsPerThread = 4;
constexpr int64_t kMinTileQueries = 8;

int64_t tiles_of(const SequenceRows& sequence, int64_t group, int64_t tile) {
  return (sequence.num_rows * group + tile - 1) / tile;
}

// Fewer queries share the reading of a tile if there would be too few items otherwise.
int64_t choose_tile_queries(std::span<const SequenceRows> sequences, const AttentionShape& shape,
                            int num_threads) {
  int64_t tile = kTileQueries;
  for (; tile > kMinTileQueries; tile /= 2) {
    int64_t items = 0;
    for (const SequenceRows& sequence : sequences) {
      items += tiles_of(sequence, shape.group, tile) * shape.kv_heads;
    }
    if (items >= 2 * num_threads) break;
  }
  return tile;
}

// Calls visit(sequence index, first query, number of queries, keys) for every tile of queries; late
// ones, which see more keys, come first.
template <typename Visit>
void for_each_tile(std::span<const SequenceRows> sequences, const AttentionShape& shape,
                   int64_t tile_queries, const Visit& visit) {
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int64_t queries = sequences[s].num_rows * shape.group;
    for (int64_t i = tiles_of(sequences[s], shape.group, tile_queries) - 1; i >= 0; --i) {
      const int64_t first = i * tile_queries;
      const int64_t count = std::min(tile_queries, queries - first);
      visit(static_cast<int32_t>(s), first, count,
            visible_keys(sequences[s], first, count, shape.group, shape.window));
    }
  }
}

// Reading keys counts about as much as the work of this many queries on them.
int64_t cost(KeyRange keys, int64_t num_queries) {
  return (keys.end - keys.begin) * (num_queries + 8);
}

template <typename T>
std::span<T> take_array(Workspace& workspace, int64_t count) {
  const TensorView bytes = workspace.take(DType::kU8, {count * static_cast<int64_t>(sizeof(T))});
  return {reinterpret_cast<T*>(bytes.raw()), static_cast<size_t>(count)};
}

}  // namespace

KeyRange visible_keys(const SequenceRows& sequence, int64_t row, int64_t window) {
  const int64_t position = sequence.first_position + row;
  return {window > 0 ? std::max<int64_t>(0, position - window + 1) : 0, position + 1};
}

KeyRange visible_keys(const SequenceRows& sequence, int64_t first_query, int64_t num_queries,
                      int64_t group, int64_t window) {
  return {visible_keys(sequence, first_query / group, window).begin,
          visible_keys(sequence, (first_query + num_queries - 1) / group, window).end};
}

AttentionPlan plan_attention(Workspace& workspace, std::span<const SequenceRows> sequences,
                             const AttentionShape& shape, int num_threads) {
  const int64_t tile_queries = choose_tile_queries(sequences, shape, num_threads);
  int64_t total_cost = 0;
  for_each_tile(sequences, shape, tile_queries,
                [&](int32_t, int64_t, int64_t count, KeyRange keys) {
                  total_cost += cost(keys, count) * shape.kv_heads;
                });
  const int64_t room =
      std::min<int64_t>(
          kMaxPartialBytes,
          static_cast<int64_t>(workspace.capacity_bytes() - workspace.used_bytes()) / 2) /
      static_cast<int64_t>(sizeof(float));

  // Both passes decide alike: a tile is split if it is more than its share of the work.
  int64_t num_items = 0;
  int64_t num_countdowns = 0;
  int64_t num_partials = 0;
  const auto place_tile = [&](int64_t count, KeyRange keys, const auto& add_item) {
    const int64_t splits = num_splits(keys);
    const int64_t needed = splits * shape.kv_heads * partial_floats(count, shape.head_dim);
    const bool split = num_threads > 1 && splits > 1 &&
                       cost(keys, count) * kItemsPerThread * num_threads > total_cost &&
                       num_partials + needed <= room;
    for (int32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      for (int64_t i = 0; i < (split ? splits : 1); ++i) {
        add_item(kv_head, split ? static_cast<int32_t>(first_split(keys) + i) : -1);
        ++num_items;
      }
      if (split) {
        num_partials += splits * partial_floats(count, shape.head_dim);
        ++num_countdowns;
      }
    }
  };
  for_each_tile(sequences, shape, tile_queries,
                [&](int32_t, int64_t, int64_t count, KeyRange keys) {
                  place_tile(count, keys, [](int32_t, int32_t) {});
                });

  AttentionPlan plan;
  plan.items = take_array<AttentionItem>(workspace, num_items);
  plan.countdowns = take_array<int32_t>(workspace, num_countdowns);
  plan.partials = take_array<float>(workspace, num_partials);
  num_items = num_countdowns = num_partials = 0;
  for_each_tile(sequences, shape, tile_queries,
                [&](int32_t sequence, int64_t first, int64_t count, KeyRange keys) {
                  place_tile(count, keys, [&](int32_t kv_head, int32_t split) {
                    plan.items[num_items] = {.sequence = sequence,
                                             .kv_head = kv_head,
                                             .num_queries = static_cast<int32_t>(count),
                                             .split = split,
                                             .first_query = first,
                                             .partials = num_partials,
                                             .countdown = static_cast<int32_t>(num_countdowns)};
                    if (split >= 0) {
                      plan.countdowns[num_countdowns] = static_cast<int32_t>(num_splits(keys));
                    }
                  });
                });
  return plan;
}

}  // namespace braid

#include "ops/attention/cuda/query_tiles.h"

#include <algorithm>
#include <cstring>

namespace braid::cuda {
namespace {

int tiles_of(int queries, int of_tile) { return (queries + of_tile - 1) / of_tile; }

}  // namespace

QueryTiles::QueryTiles(const AttentionCall& call, const QueryTileSizes& sizes)
    : call_(call), sizes_(sizes) {
  for (const SequenceRows& s : call.sequences) {
    const int queries = static_cast<int>(s.num_rows) * call.group();
    if (queries > sizes.most_split) {
      num_whole_ += tiles_of(queries, sizes.whole);
    } else if (queries > 0) {
      num_split_ += tiles_of(queries, sizes.split);
      most_split_queries_ = std::max(most_split_queries_, std::min(queries, sizes.split));
    }
  }
}

QueryTiles::Uploaded QueryTiles::upload(Table table) const {
  const size_t tiles_bytes = (num_split_ + num_whole_) * sizeof(QueryTile);
  const size_t bytes = tiles_bytes + num_split_ * call_.kv_heads() * sizeof(int32_t);
  const int group = call_.group();
  const auto fill = [&](std::byte* out) {
    auto* split = reinterpret_cast<QueryTile*>(out);
    auto* const whole = split + num_split_;
    auto* next = whole;
    for (size_t i = 0; i < call_.sequences.size(); ++i) {
      const int queries = static_cast<int>(call_.sequences[i].num_rows) * group;
      const bool splits = queries <= sizes_.most_split;
      for (int first = 0; first < queries; first += splits ? sizes_.split : sizes_.whole) {
        *(splits ? split : next)++ = {static_cast<int32_t>(i), first};
      }
    }
    const auto last_position = [&](const QueryTile& tile) {
      return call_.sequences[tile.sequence].first_position + tile.first_query / group;
    };
    std::stable_sort(whole, next, [&](const QueryTile& a, const QueryTile& b) {
      return last_position(a) > last_position(b);
    });
    std::memset(out + tiles_bytes, 0, bytes - tiles_bytes);
  };
  // Beside the table of the sequences, which has their address itself as its key. For steps of one
  // row a sequence it does not depend on anything but their number.
  static_assert(static_cast<size_t>(Table::kCount) <= alignof(SequenceRows));
  const auto* key =
      reinterpret_cast<const std::byte*>(call_.sequences.data()) + static_cast<size_t>(table);
  const auto* tiles = static_cast<const std::byte*>(call_.stream.cuda().table(key, bytes, fill));
  const auto* split = reinterpret_cast<const QueryTile*>(tiles);
  auto* arrivals = reinterpret_cast<int32_t*>(const_cast<std::byte*>(tiles + tiles_bytes));
  return {split, split + num_split_, arrivals};
}

int64_t most_visible_keys(const AttentionCall& call, int rows) {
  const int64_t keys = static_cast<int64_t>(call.table.page_capacity) * call.cache.page_tokens();
  return call.options.window > 0 ? std::min(keys, call.options.window + rows - 1) : keys;
}

}  // namespace braid::cuda

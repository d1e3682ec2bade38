#pragma once

// What the kernels of attention that go through tiles of queries share: their arguments, the
// queries of a block's tile, and the results of tiles that have several blocks.

#include <algorithm>

#include "base/check.h"
#include "ops/attention/cuda/attention_tile.cuh"
#include "ops/attention/cuda/query_tiles.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/row_vectors.cuh"
#include "ops/fused/cuda/packed_rows.cuh"

namespace braid::cuda {

struct QueryArguments {
  Rows<const float> q;
  Rows<float> out;        // null if:
  Rows<uint16_t> packed;  // bfloat16
  QueryHeads heads;
  KvTable table;
  const QueryTile* tiles = nullptr;
  int group, window;
  bool aligned;  // queries, to 16 bytes
  float scale;   // of scores in powers of 2

  explicit QueryArguments(const AttentionCall& call)
      : q(rows_of<const float>(call.q)),
        out{},
        packed{},
        heads(call.heads),
        table(call.table),
        group(call.group()),
        window(static_cast<int>(std::min<int64_t>(call.options.window, 1 << 30))),
        aligned(rows_are_aligned(call.q)),
        scale(call.options.scale * 1.44269504088896340736f) {
    if (call.packed != nullptr) {
      packed = {call.packed, call.q.dim(1) * call.head_dim()};
    } else {
      out = rows_of<float>(call.out);
    }
  }
};

// run.operator()<head_dim, Stored>(), for a store that tiles_fit().
template <typename Run>
void with_store(const AttentionCall& call, const Run& run) {
  const auto of_type = [&]<typename Stored>() {
    switch (call.head_dim()) {
      case 64:
        return run.template operator()<64, Stored>();
      case 128:
        return run.template operator()<128, Stored>();
      case 256:
        return run.template operator()<256, Stored>();
      case 512:
        return run.template operator()<512, Stored>();
      default:
        BRAID_CHECK(false, "heads of {}", call.head_dim());
    }
  };
  if (call.cache.keys.dtype() == DType::kI8) {
    of_type.template operator()<int8_t>();
  } else {
    of_type.template operator()<__nv_bfloat16>();
  }
}

// The queries of a block. Grid: tiles, KV heads, blocks of a tile.
template <int kDim, int kMost>
class TileQueries {
 public:
  __device__ __forceinline__ explicit TileQueries(const QueryArguments& args)
      : args_(args), first_(args.tiles[blockIdx.x].first_query) {
    sequence_ = args.table.sequences[args.tiles[blockIdx.x].sequence];
    count_ = min(kMost, sequence_.num_rows * args.group - first_);
  }

  __device__ __forceinline__ const DeviceSequence& sequence() const { return sequence_; }
  __device__ __forceinline__ int count() const { return count_; }
  // Of a query: its row among those of the step, and its position.
  __device__ __forceinline__ int token_of(int query) const {
    return sequence_.first_row + row_of(query);
  }
  __device__ __forceinline__ int position_of(int query) const {
    return sequence_.first_position + row_of(query);
  }
  __device__ __forceinline__ VisibleKeys visible() const {
    const int first = position_of(0), last = position_of(count_ - 1);
    return {.begin = first_seen(first),
            .end = last + 1,
            .all_begin = first_seen(last),
            .all_end = first + 1};
  }
  // The positions that queries row and row + 8 see; none where there is no such query.
  __device__ __forceinline__ void visible_to(int row, int (&begin)[2], int (&end)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = row + 8 * i, position = position_of(query);
      begin[i] = query < count_ ? first_seen(position) : 0;
      end[i] = query < count_ ? position + 1 : 0;
    }
  }

  template <typename Tile>
  __device__ __forceinline__ void bring_to(Tile& tile) const {
    const auto query_at = [&](int query) { return element_of(args_.q, query); };
    if (args_.heads.norm != nullptr) {
      tile.prepare_queries(args_.heads, count_, query_at,
                           [&](int query) { return token_of(query); });
    } else {
      tile.load_queries(count_, args_.aligned, query_at);
    }
  }

  // Results of this thread's rows: the weighted values times one factor a row.
  template <typename Tile, int kTiles>
  __device__ __forceinline__ void store(const Tile& tile, const float (&weighted)[kTiles][4],
                                        const float (&factor)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = tile.row() + 8 * i;
      if (query >= count_) continue;
      uint16_t* const packed =
          args_.packed.data != nullptr ? element_of(args_.packed, query) : nullptr;
      float* const out = packed == nullptr ? element_of(args_.out, query) : nullptr;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const float one = __fmul_rn(weighted[t][2 * i], factor[i]);
        const float other = __fmul_rn(weighted[t][2 * i + 1], factor[i]);
        if (packed != nullptr) {
          *reinterpret_cast<__nv_bfloat162*>(packed + tile.element(t)) =
              __floats2bfloat162_rn(one, other);
        } else {
          out[tile.element(t)] = one;
          out[tile.element(t) + 1] = other;
        }
      }
    }
  }
  __device__ __forceinline__ void store(int query, int element, float4 v) const {
    if (args_.packed.data != nullptr) {
      return store_rounded(element_of(args_.packed, query), element, v);
    }
    float* const out = element_of(args_.out, query) + element;
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
  }

 private:
  __device__ __forceinline__ int row_of(int query) const { return (first_ + query) / args_.group; }
  // The first position that one at this position sees.
  __device__ __forceinline__ int first_seen(int position) const {
    return args_.window > 0 ? max(0, position + 1 - args_.window) : 0;
  }
  // In rows of all heads.
  template <typename T>
  __device__ __forceinline__ T* element_of(const Rows<T>& rows, int query) const {
    const int head = static_cast<int>(blockIdx.y) * args_.group + (first_ + query) % args_.group;
    return rows[token_of(query)] + head * kDim;
  }

  const QueryArguments& args_;
  int first_, count_;
  DeviceSequence sequence_;
};

// What the blocks of split tiles leave, for the last one of each tile to add up.
struct SplitResults {
  int32_t* arrivals;   // [tiles, kv_heads]: blocks that are done; zero between launches
  float* partials;     // [tiles, kv_heads, max_splits, max_queries, head_dim]
  float2* statistics;  // [tiles, kv_heads, max_splits, max_queries]: largest, sum
  int max_splits, max_queries;
};

inline SplitResults split_results(const AttentionCall& call, const QueryTiles& tiles,
                                  int32_t* arrivals, int max_splits) {
  const int64_t rows = static_cast<int64_t>(tiles.num_split()) * call.kv_heads() * max_splits *
                       tiles.most_split_queries();
  auto* partials = call.workspace.take(DType::kF32, {rows, call.head_dim()}).data<float>();
  auto* statistics = call.workspace.take(DType::kF32, {rows, 2}).data<float>();
  return {arrivals, partials, reinterpret_cast<float2*>(statistics), max_splits,
          tiles.most_split_queries()};
}

// Those of one tile and KV head.
template <typename Shape>
class SplitTile {
 public:
  __device__ __forceinline__ explicit SplitTile(const SplitResults& results)
      : max_queries(results.max_queries) {
    const int place = blockIdx.x * gridDim.y + blockIdx.y;
    const int64_t first = static_cast<int64_t>(place) * results.max_splits * max_queries;
    partials = results.partials + first * Shape::kDim;
    statistics = results.statistics + first;
    arrivals_ = results.arrivals + place;
  }

  // Leaves this block's; true if all others' are there, too, which only one block is told. last: in
  // shared memory.
  __device__ __forceinline__ bool leave(const AttentionTile<Shape>& tile, int num_queries,
                                        int num_splits, bool& last) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = tile.row() + 8 * i;
      if (query >= num_queries) continue;
      const int64_t at = static_cast<int>(blockIdx.z) * max_queries + query;
#pragma unroll
      for (int t = 0; t < Shape::kValueTiles; ++t) {
        *reinterpret_cast<float2*>(partials + at * Shape::kDim + tile.element(t)) =
            float2{tile.weighted[t][2 * i], tile.weighted[t][2 * i + 1]};
      }
      if (tile.column_warp() == 0 && tile.lane() % 4 == 0) {
        statistics[at] = float2{tile.largest[i], tile.sum[i]};
      }
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(arrivals_, 1) == num_splits - 1;
    __syncthreads();
    if (last) __threadfence();
    return last;
  }
  // By the block that was told.
  __device__ __forceinline__ void clear() const {
    if (threadIdx.x == 0) *arrivals_ = 0;
  }

  float* partials;     // [splits, max_queries, head_dim]
  float2* statistics;  // [splits, max_queries]
  int max_queries;

 private:
  int32_t* arrivals_;
};

}  // namespace braid::cuda

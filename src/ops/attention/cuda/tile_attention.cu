#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/attention/cuda/attention_call.h"
#include "ops/attention/cuda/attention_tile.cuh"
#include "ops/attention/cuda/prompt_attention.h"
#include "ops/cuda/row_vectors.cuh"
#include "ops/fused/cuda/packed_rows.cuh"

namespace braid::cuda {
namespace {

// Sequences of up to this many queries a KV head are split by keys, others by queries.
constexpr int kMostSplitQueries = 64;
constexpr int kSplitTileQueries = 16;
// Tiles of more queries are for where there would be more blocks than run at once.
constexpr int kTileQueries = 64, kManyTileQueries = 128;

// Splits are of whole stretches of this many keys, aligned to absolute positions.
constexpr int kStretch = 64;
constexpr int kMaxSplits = 64;

__host__ __device__ constexpr int stretches_per_split(int stretches) {
  return ceil_divide(stretches, kMaxSplits);
}

struct TileArguments {
  Rows<const float> q;
  Rows<float> out;
  Rows<uint16_t> packed;  // bfloat16, instead of `out` if not null
  QueryHeads heads;
  KvTable table;
  const QueryTile* tiles;
  int group, window;
  bool aligned;  // queries, to 16 bytes
  float scale;   // of scores in powers of 2
  // Of split tiles, each with kv_heads of everything:
  int32_t* arrivals;   // splits that are done; zero between launches
  float* partials;     // [tiles, kv_heads, max_splits, kSplitTileQueries, dim]
  float2* statistics;  // [tiles, kv_heads, max_splits, kSplitTileQueries]: largest, sum
  int max_splits, max_queries;
};

// The range of keys of a split, in positions.
struct Split {
  int count;
  int begin, end;
};

__device__ Split split_of(const VisibleKeys& visible, int index) {
  const int first = visible.begin / kStretch, last = ceil_divide(visible.end, kStretch);
  const int each = stretches_per_split(last - first);
  return {ceil_divide(last - first, each), (first + index * each) * kStretch,
          min(first + (index + 1) * each, last) * kStretch};
}

// Merges the splits of a tile in their order; by a whole block. `factors`: shared memory for
// kSplitTileQueries × kMaxSplits floats.
// store(query, first element, four results)
template <int kDim, int kThreads, typename Store>
__device__ void merge_splits(const float* partials, const float2* statistics, int max_queries,
                             int num_splits, int num_queries, float* factors, const Store& store) {
  const int lane = threadIdx.x % kWarp;
  for (int query = threadIdx.x / kWarp; query < num_queries; query += kThreads / kWarp) {
    float2 own[kMaxSplits / kWarp];
    float top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < kMaxSplits / kWarp; ++i) {
      const int split = i * kWarp + lane;
      own[i] = split < num_splits ? __ldcg(&statistics[split * max_queries + query])
                                  : float2{-INFINITY, 0};
      top = fmaxf(top, own[i].x);
    }
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < kMaxSplits / kWarp; ++i) {
      own[i].x = exp2f(own[i].x - top);
      sum += own[i].x * own[i].y;
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < kMaxSplits / kWarp; ++i) {
      factors[query * kMaxSplits + i * kWarp + lane] = own[i].x / sum;
    }
  }
  __syncthreads();
  constexpr int kVectors = kDim / 4;
  for (int i = threadIdx.x; i < num_queries * kVectors; i += kThreads) {
    const int query = i / kVectors, d = i % kVectors * 4;
    const float* from = partials + query * kDim + d;
    float4 sum{};
#pragma unroll 8
    for (int split = 0; split < num_splits; ++split) {
      const float factor = factors[query * kMaxSplits + split];
      const float4 v = __ldcg(
          reinterpret_cast<const float4*>(from + static_cast<int64_t>(split) * max_queries * kDim));
      sum.x = fmaf(factor, v.x, sum.x);
      sum.y = fmaf(factor, v.y, sum.y);
      sum.z = fmaf(factor, v.z, sum.z);
      sum.w = fmaf(factor, v.w, sum.w);
    }
    store(query, d, sum);
  }
}

// Grid: tiles, KV heads, splits.
template <typename Shape, bool kSplit, int kBlocks>
__global__ void __launch_bounds__(Shape::kThreads, kBlocks)
    tile_kernel(TileArguments args, PagedRows<const typename Shape::Stored> keys,
                PagedRows<const typename Shape::Stored> values) {
  constexpr int kDim = Shape::kDim, kKeys = Shape::kKeys;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(shared_bytes);
  // The tables, and the keys and values of earlier steps, are read ahead of the kernels in front.
  const QueryTile where = args.tiles[blockIdx.x];
  const DeviceSequence sequence = args.table.sequences[where.sequence];
  const int32_t* pages = args.table.pages(sequence);
  const int kv_head = blockIdx.y;
  const int num_queries = min(Shape::kQueries, sequence.num_rows * args.group - where.first_query);
  const auto position_of = [&](int query) {
    return sequence.first_position + (where.first_query + query) / args.group;
  };
  const auto element_of = [&](const auto& rows, int query) {
    const int n = where.first_query + query;
    return rows[sequence.first_row + n / args.group] +
           (kv_head * args.group + n % args.group) * kDim;
  };
  const auto first_seen = [&](int position) {
    return args.window > 0 ? max(0, position + 1 - args.window) : 0;
  };
  const int first_position = position_of(0), last_position = position_of(num_queries - 1);
  const VisibleKeys visible{.begin = first_seen(first_position),
                            .end = last_position + 1,
                            .all_begin = first_seen(last_position),
                            .all_end = first_position + 1};
  int begin = visible.begin / kKeys * kKeys, end = visible.end, num_splits = 1;
  if constexpr (kSplit) {
    const Split split = split_of(visible, blockIdx.z);
    if (static_cast<int>(blockIdx.z) >= split.count) return wait_for_inputs();
    num_splits = split.count;
    begin = max(begin, split.begin);
    end = min(end, split.end);
  }

  AttentionTile<Shape> tile(shared);
  const auto find_key = [&](int start) {
    return tile.find_key(keys, pages, sequence.num_pages, kv_head, start, visible);
  };
  tile.begin_copies(keys, values, begin, sequence.first_position, find_key);
  const auto query_at = [&](int query) { return element_of(args.q, query); };
  if (args.heads.norm != nullptr) {
    tile.prepare_queries(args.heads, num_queries, query_at, [&](int query) {
      return sequence.first_row + (where.first_query + query) / args.group;
    });
  } else {
    tile.load_queries(num_queries, args.aligned, query_at);
  }
  int row_begin[2], row_end[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = tile.row() + 8 * i;
    const int position = position_of(query);
    row_begin[i] = query < num_queries ? first_seen(position) : 0;
    row_end[i] = query < num_queries ? position + 1 : 0;
  }

  if constexpr (Shape::kBuffers > 1) {
    if (begin + kKeys < end) tile.put_key(begin + kKeys, find_key(begin + kKeys));
    for (int start = begin; start < end; start += kKeys) {
      const int next = start + kKeys, after = next + kKeys;
      const uint32_t key_after = after < end ? find_key(after) : kNoKey;  // arrives meanwhile
      wait_for_copies<0>();
      __syncthreads();  // this tile is there, the one before is done with
      if (next < end) {
        tile.fetch_keys(keys, values, next);
        tile.fetch_values(values, next);
        commit_copies();
      }
      tile.use_tile(start);
      tile.multiply_keys();
      tile.scale_scores(args.scale, start, visible, row_begin, row_end);
      __syncthreads();
      // In the place of this tile's, which have been used.
      tile.put_key(after, key_after);
      tile.weigh();
      __syncthreads();  // weights are there
      tile.multiply_values();
    }
    __syncthreads();
  }
  for (int start = begin; Shape::kBuffers == 1 && start < end; start += kKeys) {
    tile.take_in_turn(keys, values, start, end, args.scale, visible, row_begin, row_end, find_key);
  }
  tile.finish();

  if (!kSplit || num_splits == 1) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = tile.row() + 8 * i;
      if (query >= num_queries) continue;
      const float factor = 1 / tile.sum[i];
      if (args.packed.data != nullptr) {
        uint16_t* const out = element_of(args.packed, query);
#pragma unroll
        for (int t = 0; t < Shape::kValueTiles; ++t) {
          *reinterpret_cast<__nv_bfloat162*>(out + tile.element(t)) = __floats2bfloat162_rn(
              tile.weighted[t][2 * i] * factor, tile.weighted[t][2 * i + 1] * factor);
        }
        continue;
      }
      float* const out = element_of(args.out, query);
#pragma unroll
      for (int t = 0; t < Shape::kValueTiles; ++t) {
        out[tile.element(t)] = tile.weighted[t][2 * i] * factor;
        out[tile.element(t) + 1] = tile.weighted[t][2 * i + 1] * factor;
      }
    }
    return;
  }
  if constexpr (kSplit) {
    const int place = blockIdx.x * gridDim.y + kv_head;
    const int64_t first = static_cast<int64_t>(place) * args.max_splits * args.max_queries;
    float* partials = args.partials + first * kDim;
    float2* statistics = args.statistics + first;
    const int split = blockIdx.z * args.max_queries;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = tile.row() + 8 * i;
      if (query >= num_queries) continue;
#pragma unroll
      for (int t = 0; t < Shape::kValueTiles; ++t) {
        float* to = partials + static_cast<int64_t>(split + query) * kDim + tile.element(t);
        *reinterpret_cast<float2*>(to) =
            float2{tile.weighted[t][2 * i], tile.weighted[t][2 * i + 1]};
      }
      if (tile.column_warp() == 0 && tile.lane() % 4 == 0) {
        statistics[split + query] = float2{tile.largest[i], tile.sum[i]};
      }
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      shared.last = atomicAdd(&args.arrivals[place], 1) == num_splits - 1;
    }
    __syncthreads();
    if (!shared.last) return;
    __threadfence();
    merge_splits<kDim, Shape::kThreads>(
        partials, statistics, args.max_queries, num_splits, num_queries,
        reinterpret_cast<float*>(shared.keys), [&](int query, int element, float4 v) {
          if (args.packed.data != nullptr) {
            return store_rounded(element_of(args.packed, query), element, v);
          }
          float* const out = element_of(args.out, query) + element;
          out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
        });
    if (threadIdx.x == 0) args.arrivals[place] = 0;
  }
}

// Which tiles a call has.
struct TilePlan {
  int tile_queries = kTileQueries;  // of those that are not split
  int num_split_tiles = 0;
  int num_tiles = 0;
  int most_split_queries = 1;
  int most_keys = 1;  // that a tile which is split may see
};

TilePlan plan_tiles(const AttentionCall& call, int tile_queries) {
  TilePlan plan{.tile_queries = tile_queries};
  for (const SequenceRows& s : call.sequences) {
    if (s.num_rows == 0) continue;
    const int queries = static_cast<int>(s.num_rows) * call.group();
    if (queries > kMostSplitQueries) {
      plan.num_tiles += ceil_divide(queries, tile_queries);
      continue;
    }
    plan.num_split_tiles += ceil_divide(queries, kSplitTileQueries);
    plan.most_split_queries =
        std::max(plan.most_split_queries, std::min(queries, kSplitTileQueries));
  }
  // By what the tables hold, not by positions: a graph must do for longer texts, too.
  int64_t most_keys = static_cast<int64_t>(call.table.page_capacity) * call.cache.page_tokens();
  if (call.options.window > 0) {
    most_keys = std::min(most_keys, call.options.window + kSplitTileQueries);
  }
  plan.most_keys = static_cast<int>(most_keys);
  return plan;
}

// The split tiles, then the others with those of most keys first, then counters of zero.
const std::byte* upload_tiles(const AttentionCall& call, const TilePlan& plan) {
  const size_t tiles_bytes = (plan.num_split_tiles + plan.num_tiles) * sizeof(QueryTile);
  const size_t bytes = tiles_bytes + plan.num_split_tiles * call.kv_heads() * sizeof(int32_t);
  const int group = call.group();
  const auto fill = [&](std::byte* out) {
    auto* split_tiles = reinterpret_cast<QueryTile*>(out);
    auto* tiles = split_tiles + plan.num_split_tiles;
    for (size_t i = 0; i < call.sequences.size(); ++i) {
      const int queries = static_cast<int>(call.sequences[i].num_rows) * group;
      const bool split = queries <= kMostSplitQueries;
      for (int first = 0; first < queries; first += split ? kSplitTileQueries : plan.tile_queries) {
        *(split ? split_tiles : tiles)++ = {static_cast<int32_t>(i), first};
      }
    }
    const auto last_position = [&](const QueryTile& tile) {
      return call.sequences[tile.sequence].first_position + tile.first_query / group;
    };
    std::stable_sort(tiles - plan.num_tiles, tiles, [&](const QueryTile& a, const QueryTile& b) {
      return last_position(a) > last_position(b);
    });
    std::memset(out + tiles_bytes, 0, bytes - tiles_bytes);
  };
  // Beside the table of the sequences, which has their address itself as its key. For steps of one
  // row a sequence it does not depend on anything but their number.
  const auto* key = reinterpret_cast<const std::byte*>(call.sequences.data()) +
                    (plan.tile_queries == kTileQueries ? 1 : 2);
  return static_cast<const std::byte*>(call.stream.cuda().table(key, bytes, fill));
}

template <typename Shape, bool kSplit, int kBlocks>
void launch_tiles(const AttentionCall& call, const TileArguments& args, int num_tiles, int splits) {
  auto* kernel = tile_kernel<Shape, kSplit, kBlocks>;
  constexpr size_t kBytes = sizeof(typename Shape::Shared);
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  BRAID_CUDA_CHECK(allowed);
  launch(call.stream, kernel,
         dim3(static_cast<unsigned>(num_tiles), static_cast<unsigned>(call.kv_heads()),
              static_cast<unsigned>(splits)),
         Shape::kThreads, kBytes, args,
         PagedRows<const typename Shape::Stored>(call.cache.keys, call.cache.key_scales),
         PagedRows<const typename Shape::Stored>(call.cache.values, call.cache.value_scales));
}

template <int kDim, typename Stored>
struct Shapes;
template <typename Stored>
struct Shapes<64, Stored> {
  using Split = TileShape<64, 1, 4, 64, Stored>;
  using Tile = TileShape<64, 4, 1, 64, Stored>;
  using ManyTile = Tile;
  static constexpr int kSplitBlocks = 4, kTileBlocks = 3;
};
template <typename Stored>
struct Shapes<128, Stored> {
  using Split = TileShape<128, 1, 4, 64, Stored>;
  using Tile = TileShape<128, 4, 1, 64, Stored>;
  using ManyTile = Tile;
  static constexpr int kSplitBlocks = Split::kScaled ? 3 : 4, kTileBlocks = 2;
};
template <typename Stored>
struct Shapes<256, Stored> {
  // Codes take room, too.
  static constexpr bool kCodes = sizeof(Stored) == 1;
  static constexpr int kKeys = kCodes ? 32 : 64;
  using Split = TileShape<256, 1, 4, kKeys, Stored>;
  using Tile = TileShape<256, 4, 2, kKeys, Stored, kCodes ? 1 : 2>;
  using ManyTile = std::conditional_t<kCodes, Tile, TileShape<256, 8, 2, kKeys, Stored, 2>>;
  static constexpr int kSplitBlocks = 3, kTileBlocks = kCodes ? 2 : 1;
};
template <typename Stored>
struct Shapes<512, Stored> {
  using Split = TileShape<512, 1, 4, 32, Stored>;
  using Tile = TileShape<512, 4, 4, 32, Stored, sizeof(Stored) == 1 ? 1 : 2>;
  using ManyTile = Tile;
  static constexpr int kSplitBlocks = Split::kScaled ? 1 : 2, kTileBlocks = 1;
};

template <int kDim, typename Stored>
void run(const AttentionCall& call) {
  using S = Shapes<kDim, Stored>;
  TilePlan plan = plan_tiles(call, kTileQueries);
  const bool for_prompts = prompt_attention_can(call);
  if (for_prompts) {
    plan = plan_tiles(call, kPromptQueries);
  } else if (S::ManyTile::kQueries == kManyTileQueries &&
             plan.num_tiles * call.kv_heads() > call.stream.cuda().num_multiprocessors()) {
    plan = plan_tiles(call, kManyTileQueries);
  }
  if (plan.num_split_tiles + plan.num_tiles == 0) return;
  const std::byte* tiles = upload_tiles(call, plan);
  TileArguments args{.q = rows_of<const float>(call.q),
                     .heads = call.heads,
                     .table = call.table,
                     .tiles = reinterpret_cast<const QueryTile*>(tiles),
                     .group = call.group(),
                     .window = static_cast<int>(std::min<int64_t>(call.options.window, 1 << 30)),
                     .aligned = rows_are_aligned(call.q),
                     .scale = call.options.scale * 1.44269504088896340736f};
  if (call.packed != nullptr) {
    args.packed = {call.packed, call.q.dim(1) * kDim};
  } else {
    args.out = rows_of<float>(call.out);
  }
  if (plan.num_split_tiles > 0) {
    const int stretches = ceil_divide(plan.most_keys, kStretch) + 1;
    args.max_splits = std::min(stretches, kMaxSplits);
    args.max_queries = plan.most_split_queries;
    args.arrivals = reinterpret_cast<int32_t*>(const_cast<std::byte*>(
        tiles + (plan.num_split_tiles + plan.num_tiles) * sizeof(QueryTile)));
    const int64_t results = static_cast<int64_t>(plan.num_split_tiles) * call.kv_heads() *
                            args.max_splits * args.max_queries;
    args.partials = call.workspace.take(DType::kF32, {results, kDim}).data<float>();
    args.statistics =
        reinterpret_cast<float2*>(call.workspace.take(DType::kF32, {results, 2}).data<float>());
    launch_tiles<typename S::Split, true, S::kSplitBlocks>(call, args, plan.num_split_tiles,
                                                           args.max_splits);
  }
  args.tiles += plan.num_split_tiles;
  if (plan.num_tiles == 0) return;
  if (for_prompts) {
    prompt_attention(call, args.tiles, plan.num_tiles);
  } else if (plan.tile_queries == kTileQueries) {
    launch_tiles<typename S::Tile, false, S::kTileBlocks>(call, args, plan.num_tiles, 1);
  } else {
    launch_tiles<typename S::ManyTile, false, S::kTileBlocks>(call, args, plan.num_tiles, 1);
  }
}

template <typename Stored>
void run(const AttentionCall& call) {
  switch (call.head_dim()) {
    case 64:
      return run<64, Stored>(call);
    case 128:
      return run<128, Stored>(call);
    case 256:
      return run<256, Stored>(call);
    case 512:
      return run<512, Stored>(call);
    default:
      BRAID_CHECK(false, "heads of {}", call.head_dim());
  }
}

}  // namespace

bool tiles_fit(const PagedKv& cache) {
  const int64_t dim = cache.head_dim();
  return (cache.keys.dtype() == DType::kBF16 || cache.keys.dtype() == DType::kI8) &&
         (dim == 64 || dim == 128 || dim == 256 || dim == 512) &&
         reinterpret_cast<uintptr_t>(cache.keys.raw()) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(cache.values.raw()) % 16 == 0;
}

void tile_attention(const AttentionCall& call) {
  if (call.cache.keys.dtype() == DType::kI8) {
    run<int8_t>(call);
  } else {
    run<__nv_bfloat16>(call);
  }
}

}  // namespace braid::cuda

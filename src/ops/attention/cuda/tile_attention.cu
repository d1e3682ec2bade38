#include <algorithm>
#include <cmath>

#include "ops/attention/cuda/prompt_attention.h"
#include "ops/attention/cuda/query_tiles.cuh"

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

struct TileArguments : QueryArguments {
  using QueryArguments::QueryArguments;
  SplitResults results{};
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
    tile_kernel(const __grid_constant__ TileArguments args,
                const __grid_constant__ PagedRows<const typename Shape::Stored> keys,
                const __grid_constant__ PagedRows<const typename Shape::Stored> values) {
  constexpr int kDim = Shape::kDim, kKeys = Shape::kKeys;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(shared_bytes);
  // The tables, and the keys and values of earlier steps, are read ahead of the kernels in front.
  const TileQueries<kDim, Shape::kQueries> queries(args);
  const DeviceSequence& sequence = queries.sequence();
  const int32_t* pages = args.table.pages(sequence);
  const int kv_head = blockIdx.y;
  const VisibleKeys visible = queries.visible();
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
  queries.bring_to(tile);
  int row_begin[2], row_end[2];
  queries.visible_to(tile.row(), row_begin, row_end);

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
    const float factor[2] = {1 / tile.sum[0], 1 / tile.sum[1]};
    return queries.store(tile, tile.weighted, factor);
  }
  if constexpr (kSplit) {
    const SplitTile<Shape> all(args.results);
    if (!all.leave(tile, queries.count(), num_splits, shared.last)) return;
    merge_splits<kDim, Shape::kThreads>(
        all.partials, all.statistics, all.max_queries, num_splits, queries.count(),
        reinterpret_cast<float*>(shared.keys),
        [&](int query, int element, float4 v) { queries.store(query, element, v); });
    all.clear();
  }
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
  const auto tiles_of = [&](int whole) {
    return QueryTiles(call, {kMostSplitQueries, kSplitTileQueries, whole});
  };
  int whole = kTileQueries;
  const bool for_prompts = prompt_attention_can(call);
  if (for_prompts) {
    whole = kPromptQueries;
  } else if (S::ManyTile::kQueries == kManyTileQueries &&
             tiles_of(kTileQueries).num_whole() * call.kv_heads() >
                 call.stream.cuda().num_multiprocessors()) {
    whole = kManyTileQueries;
  }
  const QueryTiles tiles = tiles_of(whole);
  if (tiles.empty()) return;
  const QueryTiles::Uploaded uploaded = tiles.upload(
      whole == kTileQueries ? QueryTiles::Table::kTiles : QueryTiles::Table::kLargeTiles);
  TileArguments args(call);
  if (tiles.num_split() > 0) {
    const auto most_keys = static_cast<int>(most_visible_keys(call, kSplitTileQueries));
    const int most_stretches = ceil_divide(most_keys, kStretch) + 1;
    args.tiles = uploaded.split;
    args.results =
        split_results(call, tiles, uploaded.arrivals, std::min(most_stretches, kMaxSplits));
    launch_tiles<typename S::Split, true, S::kSplitBlocks>(call, args, tiles.num_split(),
                                                           args.results.max_splits);
  }
  args.tiles = uploaded.whole;
  if (tiles.num_whole() == 0) return;
  if (for_prompts) {
    prompt_attention(call, args.tiles, tiles.num_whole());
  } else if (whole == kTileQueries) {
    launch_tiles<typename S::Tile, false, S::kTileBlocks>(call, args, tiles.num_whole(), 1);
  } else {
    launch_tiles<typename S::ManyTile, false, S::kTileBlocks>(call, args, tiles.num_whole(), 1);
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
  with_store(call, [&]<int kDim, typename Stored>() { run<kDim, Stored>(call); });
}

}  // namespace braid::cuda

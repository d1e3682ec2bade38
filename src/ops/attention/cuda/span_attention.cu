#include <algorithm>

#include "ops/attention/cuda/key_spans.h"
#include "ops/attention/cuda/query_tiles.cuh"

namespace braid::cuda {
namespace {

constexpr int kTileQueries = 16;
// Sequences of up to this many queries a KV head have a block for each span, others one for all.
constexpr int kMostSplitQueries = 64;
constexpr int kMostSplits = 64;  // as planned (engine/memory_plan.cc)

struct SpanArguments : QueryArguments {
  SpanArguments(const AttentionCall& call, const KeySpans& of) : QueryArguments(call), spans(of) {}
  KeySpans spans;
  SplitResults results{};  // max_splits 0: a block goes through all spans
};

// What the first spans have made of a query. The next ones are added one by one, in their order,
// and whoever adds them rounds alike. A span of which the query sees nothing has a sum of zero and
// changes nothing: only tiles that the query shares with others look at it.
struct SpanTotal {
  float largest = -INFINITY, sum = 0;
  float kept = 1, taken = 0;  // by what weighted values so far, and the span's, are multiplied

  __device__ void add(float span_largest, float span_sum) {
    const float top = fmaxf(largest, span_largest);
    kept = exp2f(__fsub_rn(largest, top));
    taken = exp2f(__fsub_rn(span_largest, top));
    largest = top;
    sum = with(sum, span_sum);
  }
  __device__ float with(float so_far, float of_span) const {
    return __fmaf_rn(of_span, taken, __fmul_rn(so_far, kept));
  }
  __device__ float share() const { return __fdiv_rn(1, sum); }
};

// Adds up the spans of a tile; by a whole block. store(query, first element, four results)
template <int kDim, int kThreads, typename Store>
__device__ void add_spans(const float* partials, const float2* statistics, int max_queries,
                          int num_spans, int num_queries, const Store& store) {
  constexpr int kVectors = kDim / 4, kAtOnce = 8;
  for (int i = threadIdx.x; i < num_queries * kVectors; i += kThreads) {
    const int query = i / kVectors, d = i % kVectors * 4;
    SpanTotal total;
    float4 v{};
#pragma unroll 1
    for (int first = 0; first < num_spans; first += kAtOnce) {
      float2 span[kAtOnce];
      float4 x[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int64_t at = int64_t{min(first + n, num_spans - 1)} * max_queries + query;
        span[n] = __ldcg(statistics + at);
        x[n] = __ldcg(reinterpret_cast<const float4*>(partials + at * kDim + d));
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        if (first + n >= num_spans || span[n].y == 0) continue;
        total.add(span[n].x, span[n].y);
        v = {total.with(v.x, x[n].x), total.with(v.y, x[n].y), total.with(v.z, x[n].z),
             total.with(v.w, x[n].w)};
      }
    }
    const float share = total.share();
    store(query, d,
          float4{__fmul_rn(v.x, share), __fmul_rn(v.y, share), __fmul_rn(v.z, share),
                 __fmul_rn(v.w, share)});
  }
}

// Grid: tiles, KV heads, spans or 1. The same code computes a span, whether the block goes on with
// the next one or leaves it to the last block of the tile to add them up.
template <typename Shape, int kBlocks>
__global__ void __launch_bounds__(Shape::kThreads, kBlocks)
    span_kernel(const __grid_constant__ SpanArguments args,
                const __grid_constant__ PagedRows<const typename Shape::Stored> keys,
                const __grid_constant__ PagedRows<const typename Shape::Stored> values) {
  static_assert(Shape::kRowWarps == 1 && Shape::kBuffers == 1);
  constexpr int kDim = Shape::kDim, kKeys = Shape::kKeys;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(shared_bytes);
  // The tables, and the keys and values of earlier steps, are read ahead of the kernels in front.
  const TileQueries<kDim, kTileQueries> queries(args);
  const DeviceSequence& sequence = queries.sequence();
  const int32_t* pages = args.table.pages(sequence);
  const int kv_head = blockIdx.y;
  const VisibleKeys visible = queries.visible();
  int begin = visible.begin / kKeys * kKeys, end = visible.end;
  int span = args.spans.index_of(visible.begin);
  const int num_spans = args.spans.index_of(visible.end - 1) - span + 1;
  const bool split = args.results.max_splits > 0 && num_spans > 1;
  if (args.results.max_splits > 0) {
    if (static_cast<int>(blockIdx.z) >= num_spans) return wait_for_inputs();
    span += static_cast<int>(blockIdx.z);
    begin = max(begin, args.spans.begin_of(span));
    end = min(end, args.spans.begin_of(span + 1));
  }

  AttentionTile<Shape> tile(shared);
  const auto find_key = [&](int start) {
    return tile.find_key(keys, pages, sequence.num_pages, kv_head, start, visible);
  };
  tile.begin_copies(keys, values, begin, sequence.first_position, find_key);
  queries.bring_to(tile);
  int row_begin[2], row_end[2];
  queries.visible_to(tile.row(), row_begin, row_end);

  SpanTotal total[2];
  float weighted[Shape::kValueTiles][4] = {};
  int span_end = args.spans.begin_of(span + 1);
  for (int start = begin; start < end; start += kKeys) {
    const int next = start + kKeys;
    const bool more = next < end;
    tile.take_in_turn(keys, values, start, end, args.scale, visible, row_begin, row_end, find_key);
    if (more && next < span_end) continue;
    tile.finish();
    if (split) break;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (tile.sum[i] != 0) {
        total[i].add(tile.largest[i], tile.sum[i]);
#pragma unroll
        for (int t = 0; t < Shape::kValueTiles; ++t) {
          weighted[t][2 * i] = total[i].with(weighted[t][2 * i], tile.weighted[t][2 * i]);
          weighted[t][2 * i + 1] =
              total[i].with(weighted[t][2 * i + 1], tile.weighted[t][2 * i + 1]);
        }
      }
    }
    tile.start_again();
    span_end = args.spans.begin_of(++span + 1);
  }

  if (!split) {
    const float share[2] = {total[0].share(), total[1].share()};
    return queries.store(tile, weighted, share);
  }
  const SplitTile<Shape> all(args.results);
  if (!all.leave(tile, queries.count(), num_spans, shared.last)) return;
  add_spans<kDim, Shape::kThreads>(
      all.partials, all.statistics, all.max_queries, num_spans, queries.count(),
      [&](int query, int element, float4 v) { queries.store(query, element, v); });
  all.clear();
}

template <int kDim, typename Stored>
struct Shapes {
  using Shape =
      TileShape<kDim, 1, 4, kDim == 512 || (kDim == 256 && sizeof(Stored) == 1) ? 32 : 64, Stored>;
  static constexpr int kBlocks = kDim == 512   ? Shape::kScaled ? 1 : 2
                                 : kDim == 256 ? 3
                                 : kDim == 128 ? Shape::kScaled ? 3 : 4
                                               : 4;
};

template <int kDim, typename Stored>
void launch_tiles(const AttentionCall& call, const SpanArguments& args, int num_tiles) {
  using Shape = typename Shapes<kDim, Stored>::Shape;
  auto* kernel = span_kernel<Shape, Shapes<kDim, Stored>::kBlocks>;
  constexpr size_t kBytes = sizeof(typename Shape::Shared);
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  BRAID_CUDA_CHECK(allowed);
  launch(call.stream, kernel,
         dim3(static_cast<unsigned>(num_tiles), static_cast<unsigned>(call.kv_heads()),
              static_cast<unsigned>(std::max(args.results.max_splits, 1))),
         Shape::kThreads, kBytes, args,
         PagedRows<const Stored>(call.cache.keys, call.cache.key_scales),
         PagedRows<const Stored>(call.cache.values, call.cache.value_scales));
}

template <int kDim, typename Stored>
void run(const AttentionCall& call) {
  const KeySpans spans(call.options.window);
  const int64_t most_keys = std::min<int64_t>(most_visible_keys(call, kTileQueries), 1 << 30);
  const int most_spans = spans.most_touched(most_keys);
  const bool may_split = most_spans <= kMostSplits;
  const QueryTiles tiles(call, {may_split ? kMostSplitQueries : 0, kTileQueries, kTileQueries});
  if (tiles.empty()) return;
  // Layers whose plans differ do so by what may be split.
  const QueryTiles::Uploaded uploaded =
      tiles.upload(may_split ? QueryTiles::Table::kSpans : QueryTiles::Table::kWholeSpans);
  SpanArguments args(call, spans);
  if (tiles.num_split() > 0) {
    args.tiles = uploaded.split;
    args.results = split_results(call, tiles, uploaded.arrivals, most_spans);
    launch_tiles<kDim, Stored>(call, args, tiles.num_split());
  }
  args.tiles = uploaded.whole;
  args.results.max_splits = 0;
  if (tiles.num_whole() > 0) launch_tiles<kDim, Stored>(call, args, tiles.num_whole());
}

}  // namespace

void span_attention(const AttentionCall& call) {
  with_store(call, [&]<int kDim, typename Stored>() { run<kDim, Stored>(call); });
}

}  // namespace braid::cuda

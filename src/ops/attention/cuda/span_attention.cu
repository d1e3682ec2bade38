#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/attention/cuda/attention_call.h"
#include "ops/attention/cuda/attention_tile.cuh"
#include "ops/attention/cuda/key_spans.h"
#include "ops/attention/cuda/prompt_attention.h"
#include "ops/cuda/row_vectors.cuh"
#include "ops/fused/cuda/packed_rows.cuh"

namespace braid::cuda {
namespace {

constexpr int kTileQueries = 16;
// Sequences of up to this many queries a KV head have a block for each span, others one for all.
constexpr int kMostSplitQueries = 64;
constexpr int kMostSplits = 64;  // as planned (engine/memory_plan.cc)

struct SpanArguments {
  Rows<const float> q;
  Rows<float> out;
  Rows<uint16_t> packed;  // bfloat16, instead of `out` if not null
  QueryHeads heads;
  KvTable table;
  const QueryTile* tiles;
  KeySpans spans;
  int group, window;
  bool aligned;  // queries, to 16 bytes
  float scale;   // of scores in powers of 2
  // Of tiles with a block for each span; max_splits 0: a block goes through all of them.
  int32_t* arrivals;   // [tiles, kv_heads]: spans that are done; zero between launches
  float* partials;     // [tiles, kv_heads, max_splits, max_queries, dim]
  float2* statistics;  // [tiles, kv_heads, max_splits, max_queries]: largest, sum
  int max_splits, max_queries;
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
    span_kernel(SpanArguments args, PagedRows<const typename Shape::Stored> keys,
                PagedRows<const typename Shape::Stored> values) {
  static_assert(Shape::kRowWarps == 1 && Shape::kBuffers == 1);
  constexpr int kDim = Shape::kDim, kKeys = Shape::kKeys;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(shared_bytes);
  // The tables, and the keys and values of earlier steps, are read ahead of the kernels in front.
  const QueryTile where = args.tiles[blockIdx.x];
  const DeviceSequence sequence = args.table.sequences[where.sequence];
  const int32_t* pages = args.table.pages(sequence);
  const int kv_head = blockIdx.y;
  const int num_queries = min(kTileQueries, sequence.num_rows * args.group - where.first_query);
  const auto row_of = [&](int query) { return (where.first_query + query) / args.group; };
  const auto element_of = [&](const auto& rows, int query) {
    return rows[sequence.first_row + row_of(query)] +
           (kv_head * args.group + (where.first_query + query) % args.group) * kDim;
  };
  const auto first_seen = [&](int position) {
    return args.window > 0 ? max(0, position + 1 - args.window) : 0;
  };
  const int first_position = sequence.first_position + row_of(0);
  const int last_position = sequence.first_position + row_of(num_queries - 1);
  const VisibleKeys visible{.begin = first_seen(first_position),
                            .end = last_position + 1,
                            .all_begin = first_seen(last_position),
                            .all_end = first_position + 1};
  int begin = visible.begin / kKeys * kKeys, end = visible.end;
  int span = args.spans.index_of(visible.begin);
  const int num_spans = args.spans.index_of(visible.end - 1) - span + 1;
  const bool split = args.max_splits > 0 && num_spans > 1;
  if (args.max_splits > 0) {
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
  const auto query_at = [&](int query) { return element_of(args.q, query); };
  if (args.heads.norm != nullptr) {
    tile.prepare_queries(args.heads, num_queries, query_at,
                         [&](int query) { return sequence.first_row + row_of(query); });
  } else {
    tile.load_queries(num_queries, args.aligned, query_at);
  }
  int row_begin[2], row_end[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = tile.row() + 8 * i;
    const int position = sequence.first_position + row_of(query);
    row_begin[i] = query < num_queries ? first_seen(position) : 0;
    row_end[i] = query < num_queries ? position + 1 : 0;
  }

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
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = tile.row() + 8 * i;
      if (query >= num_queries) continue;
      const float share = total[i].share();
      uint16_t* const packed =
          args.packed.data != nullptr ? element_of(args.packed, query) : nullptr;
      float* const out = packed == nullptr ? element_of(args.out, query) : nullptr;
#pragma unroll
      for (int t = 0; t < Shape::kValueTiles; ++t) {
        const float one = __fmul_rn(weighted[t][2 * i], share);
        const float other = __fmul_rn(weighted[t][2 * i + 1], share);
        if (packed != nullptr) {
          *reinterpret_cast<__nv_bfloat162*>(packed + tile.element(t)) =
              __floats2bfloat162_rn(one, other);
        } else {
          out[tile.element(t)] = one;
          out[tile.element(t) + 1] = other;
        }
      }
    }
    return;
  }
  const int place = blockIdx.x * gridDim.y + kv_head;
  const int64_t first = static_cast<int64_t>(place) * args.max_splits * args.max_queries;
  float* partials = args.partials + first * kDim;
  float2* statistics = args.statistics + first;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = tile.row() + 8 * i;
    if (query >= num_queries) continue;
    const int64_t at = static_cast<int>(blockIdx.z) * args.max_queries + query;
#pragma unroll
    for (int t = 0; t < Shape::kValueTiles; ++t) {
      *reinterpret_cast<float2*>(partials + at * kDim + tile.element(t)) =
          float2{tile.weighted[t][2 * i], tile.weighted[t][2 * i + 1]};
    }
    if (tile.column_warp() == 0 && tile.lane() % 4 == 0) {
      statistics[at] = float2{tile.largest[i], tile.sum[i]};
    }
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.last = atomicAdd(&args.arrivals[place], 1) == num_spans - 1;
  }
  __syncthreads();
  if (!shared.last) return;
  __threadfence();
  add_spans<kDim, Shape::kThreads>(partials, statistics, args.max_queries, num_spans, num_queries,
                                   [&](int query, int element, float4 v) {
                                     if (args.packed.data != nullptr) {
                                       return store_rounded(element_of(args.packed, query), element,
                                                            v);
                                     }
                                     float* const out = element_of(args.out, query) + element;
                                     out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
                                   });
  if (threadIdx.x == 0) args.arrivals[place] = 0;
}

// Which tiles a call has.
struct SpanPlan {
  int num_split_tiles = 0, num_tiles = 0;  // with a block for each span; with one for all
  int max_splits = 0;
  int most_split_queries = 1;
};

bool is_split(const SpanPlan& plan, int queries) {
  return plan.max_splits > 0 && queries <= kMostSplitQueries;
}

SpanPlan plan_tiles(const AttentionCall& call, const KeySpans& spans) {
  SpanPlan plan;
  // By what the tables hold, not by positions: a graph must do for longer texts, too.
  int64_t most_keys = static_cast<int64_t>(call.table.page_capacity) * call.cache.page_tokens();
  if (call.options.window > 0) {
    most_keys = std::min(most_keys, call.options.window + kTileQueries - 1);
  }
  plan.max_splits = spans.most_touched(std::min<int64_t>(most_keys, 1 << 30));
  if (plan.max_splits > kMostSplits) plan.max_splits = 0;
  for (const SequenceRows& s : call.sequences) {
    const int queries = static_cast<int>(s.num_rows) * call.group();
    const int tiles = ceil_divide(queries, kTileQueries);
    if (!is_split(plan, queries)) {
      plan.num_tiles += tiles;
      continue;
    }
    plan.num_split_tiles += tiles;
    plan.most_split_queries = std::max(plan.most_split_queries, std::min(queries, kTileQueries));
  }
  return plan;
}

// The split tiles, then the others with those of most keys first, then counters of zero.
const std::byte* upload_tiles(const AttentionCall& call, const SpanPlan& plan) {
  const size_t tiles_bytes = (plan.num_split_tiles + plan.num_tiles) * sizeof(QueryTile);
  const size_t bytes = tiles_bytes + plan.num_split_tiles * call.kv_heads() * sizeof(int32_t);
  const int group = call.group();
  const auto fill = [&](std::byte* out) {
    auto* split_tiles = reinterpret_cast<QueryTile*>(out);
    auto* const tiles = split_tiles + plan.num_split_tiles;
    auto* next = tiles;
    for (size_t i = 0; i < call.sequences.size(); ++i) {
      const int queries = static_cast<int>(call.sequences[i].num_rows) * group;
      auto*& to = is_split(plan, queries) ? split_tiles : next;
      for (int first = 0; first < queries; first += kTileQueries) {
        *to++ = {static_cast<int32_t>(i), first};
      }
    }
    const auto last_position = [&](const QueryTile& tile) {
      return call.sequences[tile.sequence].first_position + tile.first_query / group;
    };
    std::stable_sort(tiles, next, [&](const QueryTile& a, const QueryTile& b) {
      return last_position(a) > last_position(b);
    });
    std::memset(out + tiles_bytes, 0, bytes - tiles_bytes);
  };
  // Beside the table of the sequences, which has their address itself as its key, and those of
  // tile_attention(). Layers whose plans differ do so by max_splits being 0.
  const auto* key =
      reinterpret_cast<const std::byte*>(call.sequences.data()) + (plan.max_splits > 0 ? 3 : 4);
  return static_cast<const std::byte*>(call.stream.cuda().table(key, bytes, fill));
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
              static_cast<unsigned>(std::max(args.max_splits, 1))),
         Shape::kThreads, kBytes, args,
         PagedRows<const Stored>(call.cache.keys, call.cache.key_scales),
         PagedRows<const Stored>(call.cache.values, call.cache.value_scales));
}

template <int kDim, typename Stored>
void run(const AttentionCall& call) {
  const KeySpans spans(call.options.window);
  const SpanPlan plan = plan_tiles(call, spans);
  if (plan.num_split_tiles + plan.num_tiles == 0) return;
  const std::byte* tiles = upload_tiles(call, plan);
  SpanArguments args{.q = rows_of<const float>(call.q),
                     .heads = call.heads,
                     .table = call.table,
                     .tiles = reinterpret_cast<const QueryTile*>(tiles),
                     .spans = spans,
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
    args.max_splits = plan.max_splits;
    args.max_queries = plan.most_split_queries;
    args.arrivals = reinterpret_cast<int32_t*>(const_cast<std::byte*>(
        tiles + (plan.num_split_tiles + plan.num_tiles) * sizeof(QueryTile)));
    const int64_t results = static_cast<int64_t>(plan.num_split_tiles) * call.kv_heads() *
                            args.max_splits * args.max_queries;
    args.partials = call.workspace.take(DType::kF32, {results, kDim}).data<float>();
    args.statistics =
        reinterpret_cast<float2*>(call.workspace.take(DType::kF32, {results, 2}).data<float>());
    launch_tiles<kDim, Stored>(call, args, plan.num_split_tiles);
  }
  args.tiles += plan.num_split_tiles;
  args.max_splits = 0;
  if (plan.num_tiles > 0) launch_tiles<kDim, Stored>(call, args, plan.num_tiles);
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

void span_attention(const AttentionCall& call) {
  if (call.cache.keys.dtype() == DType::kI8) {
    run<int8_t>(call);
  } else {
    run<__nv_bfloat16>(call);
  }
}

}  // namespace braid::cuda

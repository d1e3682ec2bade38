#include <algorithm>
#include <array>
#include <map>

#include "ops/attention/cuda/attention_call.h"
#include "ops/attention/cuda/attention_tile.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/fused/cuda/attend_stamps.cuh"
#include "ops/fused/cuda/head.cuh"
#include "ops/fused/cuda/packed_rows.cuh"
#include "ops/linear/cuda/tensor_core.cuh"

namespace braid::cuda {
namespace {

constexpr int kQueries = 16;  // heads that share a KV head
constexpr int kMostSplits = 8;
constexpr int kMostTiles = 8;  // of keys that a block goes through; with more, others are faster

struct Arguments {
  Rows<const float> q, k, v;  // k: null if keys and values are another layer's
  const float* q_norm;
  const float* k_norm;
  bool normed_values;
  float epsilon;
  Rows<const float> cos, sin;
  int pairs, distance;
  int group, window;
  float scale;  // of scores in powers of 2
  KvTable table;
  Rows<float> out;        // null if:
  Rows<uint16_t> packed;  // bfloat16
};

// Into the shared memory of another block of the cluster, which has begun.
__device__ __forceinline__ void push(uint32_t shared, int rank, float x, float y) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .u32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "st.shared::cluster.v2.f32 [remote], {%2, %3};\n}" ::"r"(shared),
      "r"(rank), "f"(x), "f"(y)
      : "memory");
#endif
}
// That this block has begun; until all have.
__device__ __forceinline__ void announce_to_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void await_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

template <typename Shape>
struct Shared {
  static constexpr int kDim = Shape::kDim;
  typename Shape::Shared tile;
  alignas(16) float scratch[Shape::kThreads / kWarp][kDim];
  alignas(16) __nv_bfloat16 new_key[kDim], new_value[kDim];
  float new_scales[2];  // of the two, if they are int8
  // What the blocks of the cluster have made of this one's share of the elements.
  alignas(16) float2 statistics[kMostSplits][kQueries];  // largest, sum
  alignas(16) float sums[];                              // [splits][group][kDim / splits]
};

// Grid: splits (a cluster), KV heads, sequences. Each block prepares the queries, one of a cluster
// the key and value; then each goes through its share of the keys, and they add up through each
// other's shared memory.
template <typename Shape, int kBlocks>
__global__ void __launch_bounds__(Shape::kThreads, kBlocks)
    attend_before_kernel(const __grid_constant__ Arguments args,
                         PagedRows<typename Shape::Stored> keys,
                         PagedRows<typename Shape::Stored> values) {
  constexpr int kDim = Shape::kDim, kKeys = Shape::kKeys, kThreads = Shape::kThreads;
  constexpr int kWarps = kThreads / kWarp, kChunks = kDim / 8;
  static_assert(Shape::kRowWarps == 1 && kWarps == 4);
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<Shared<Shape>*>(shared_bytes);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int kv_head = blockIdx.y, splits = gridDim.x, split = blockIdx.x;

  stamp(0);
  announce_to_cluster();
  // The tables, and the keys and values of earlier steps, are read ahead of the kernels in front.
  const DeviceSequence sequence = args.table.sequences[blockIdx.z];
  const int32_t* pages = args.table.pages(sequence);
  const int position = sequence.first_position, token = sequence.first_row;
  const int first_seen = args.window > 0 ? max(0, position + 1 - args.window) : 0;
  const VisibleKeys visible{first_seen, position + 1, first_seen, position + 1};
  const int first_tile = first_seen / kKeys, last_tile = position / kKeys + 1;
  const int each = (last_tile - first_tile + splits - 1) / splits;
  const int begin = (first_tile + split * each) * kKeys;
  const int end = min((first_tile + (split + 1) * each) * kKeys, position + 1);
  const bool stores = args.k.data != nullptr;
  const bool owns_new = stores && begin <= position && position < end;

  AttentionTile<Shape> tile(shared.tile);
  const auto find_key = [&](int start) {
    return tile.find_key(keys, pages, sequence.num_pages, kv_head, start, visible);
  };
  // All of a tile's keys or values but the new one.
  const int skipped = stores ? position : -1;
  const auto fetch_keys = [&](int start) {
    tile.fetch_keys(keys, values, start, 0, INT32_MAX, skipped);
  };
  const auto fetch_values = [&](int start) {
    tile.fetch_values(values, start, 0, INT32_MAX, skipped);
  };
#pragma unroll 1
  for (int i = threadIdx.x; i < (kQueries - args.group) * kChunks; i += kThreads) {
    *reinterpret_cast<uint4*>(&shared.tile.queries[AttentionTile<Shape>::wide_place(
        args.group + i / kChunks, i % kChunks)]) = uint4{};
  }
  if (begin < end) {
    tile.put_key(begin, find_key(begin));
    __syncthreads();
    fetch_keys(begin);
    commit_copies();
    fetch_values(begin);
    commit_copies();
  }
  // A warp prepares every fourth query; the last two of them then the new key and value. One loop
  // for all of them keeps the code short: fetching it is a good part of the kernel's time.
  using H = Head<kDim>;
  const float* cos = args.cos[token];
  const float* sin = args.sin[token];
  const bool in_lane = H::turns_in_lane(args.pairs, args.distance);
  bool makes_new = owns_new && warp >= kWarps - 2;
  const bool makes_key = warp == kWarps - 1;
  const auto weight_of = [&](int query) {
    return query < args.group ? args.q_norm : makes_key ? args.k_norm : nullptr;
  };
  const float* weight = weight_of(warp);
  typename H::Row gains, cosines, sines;
  gains.load(weight, kDim, lane);
  if (in_lane) {
    cosines.load(cos, args.pairs, lane);
    sines.load(sin, args.pairs, lane);
  }
  stamp(1);
  stamp(2);
  wait_for_inputs();
  stamp(3);

#pragma unroll 1
  for (int query = warp; begin < end && (query < args.group || makes_new); query += kWarps) {
    const bool is_query = query < args.group, is_value = !is_query && !makes_key;
    makes_new = makes_new && is_query;
    const float* from = is_query ? args.q[token] + (kv_head * args.group + query) * kDim
                                 : (makes_key ? args.k[token] : args.v[token]) + kv_head * kDim;
    H head;
    head.load(from, lane);
    if (weight != weight_of(query)) {
      weight = weight_of(query);
      gains.load(weight, kDim, lane);
    }
    if (!is_value || args.normed_values) head.norm(gains, args.epsilon);
    if (!is_value && in_lane) head.turn_in_lane(cosines, sines, args.pairs, lane);
    if (!is_value && !in_lane) {
      head.turn(cos, sin, args.pairs, args.distance, shared.scratch[warp], lane);
    }
    const int64_t at =
        is_query ? 0 : keys.offset(pages, sequence.num_pages, position) + keys.head_offset(kv_head);
    if constexpr (Shape::kScaled) {
      if (!is_query) {
        const float scale = head.to_codes();
        if (lane == 0) {
          shared.new_scales[is_value] = scale;
          (is_value ? values : keys).scales[at / kDim] = scale;
        }
      }
    }
    __nv_bfloat16* to = is_query   ? shared.tile.queries
                        : is_value ? shared.new_value
                                   : shared.new_key;
#pragma unroll
    for (int j = 0; j < H::kKept; ++j) {
      const int element = H::element(j, lane);
      if (element >= kDim) continue;
      const int place = AttentionTile<Shape>::wide_place(query, element / 8) + element % 8;
      put(to + (is_query ? place : element), head.v[j]);
    }
    if (is_query) continue;
    head.store((is_value ? values.data : keys.data) + at, lane);
  }
  __syncthreads();
  stamp(4);

  const int row_begin[2] = {first_seen, first_seen};
  int row_end[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) row_end[i] = tile.row() + 8 * i < args.group ? position + 1 : 0;
#pragma unroll 1
  for (int start = begin; start < end; start += kKeys) {
    const int next = start + kKeys;
    const bool more = next < end;
    if (owns_new && start <= position && position < next && threadIdx.x < kChunks) {
      const int place = AttentionTile<Shape>::wide_place(position - start, threadIdx.x);
      *reinterpret_cast<uint4*>(&shared.tile.keys[place]) =
          *reinterpret_cast<const uint4*>(&shared.new_key[threadIdx.x * 8]);
      *reinterpret_cast<uint4*>(&shared.tile.values[place]) =
          *reinterpret_cast<const uint4*>(&shared.new_value[threadIdx.x * 8]);
      if constexpr (Shape::kScaled) {
        auto& codes = shared.tile.codes;
        const int parity = start / kKeys % 2;
        codes.key_scales[parity][position - start] = shared.new_scales[0];
        codes.value_scales[parity][position - start] = shared.new_scales[1];
      }
    }
    wait_for_copies<1>();
    tile.expand_keys(start, skipped);
    __syncthreads();  // keys are there
    const uint32_t next_key = more ? find_key(next) : kNoKey;
    tile.multiply_keys();
    tile.scale_scores(args.scale, start, visible, row_begin, row_end);
    tile.put_key(next, next_key);
    __syncthreads();  // keys are done with
    if (more) fetch_keys(next);
    commit_copies();
    tile.weigh();
    wait_for_copies<1>();
    tile.expand_values(start, skipped);
    __syncthreads();  // values and weights are there
    tile.multiply_values();
    __syncthreads();  // values are done with
    if (more) fetch_values(next);
    commit_copies();
  }
  tile.finish();
  stamp(5);

  // Each block of the cluster adds up its share of the elements.
  await_cluster();
  const int share = kDim / splits;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = tile.row() + 8 * i;
    if (query >= args.group) continue;
#pragma unroll
    for (int t = 0; t < Shape::kValueTiles; ++t) {
      const int owner = tile.element(t) / share, element = tile.element(t) % share;
      push(shared_address(&shared.sums[(split * args.group + query) * share + element]), owner,
           tile.weighted[t][2 * i], tile.weighted[t][2 * i + 1]);
    }
    if (tile.column_warp() == 0 && lane % 4 == 0) {
#pragma unroll 1
      for (int owner = 0; owner < splits; ++owner) {
        push(shared_address(&shared.statistics[split][query]), owner, tile.largest[i], tile.sum[i]);
      }
    }
  }
  stamp(6);
  sync_cluster();
  stamp(7);
  const int vectors = share / 4;
#pragma unroll 1
  for (int i = threadIdx.x; i < args.group * vectors; i += kThreads) {
    const int query = i / vectors, element = i % vectors * 4;
    float top = -INFINITY, sum = 0;
#pragma unroll 1
    for (int rank = 0; rank < splits; ++rank) {
      top = fmaxf(top, shared.statistics[rank][query].x);
    }
    float4 total{};
#pragma unroll 1
    for (int rank = 0; rank < splits; ++rank) {
      const float2 of_rank = shared.statistics[rank][query];
      const float weight = exp2f(of_rank.x - top);
      sum = fmaf(weight, of_rank.y, sum);
      const float4 v = *reinterpret_cast<const float4*>(
          &shared.sums[(rank * args.group + query) * share + element]);
      total.x = fmaf(weight, v.x, total.x);
      total.y = fmaf(weight, v.y, total.y);
      total.z = fmaf(weight, v.z, total.z);
      total.w = fmaf(weight, v.w, total.w);
    }
    const float factor = 1 / sum;
    total = {total.x * factor, total.y * factor, total.z * factor, total.w * factor};
    const int at = (kv_head * args.group + query) * kDim + split * share + element;
    if (args.out.data != nullptr) {
      put(args.out[token] + at, total);
    } else {
      store_rounded(args.packed[token], at, total);
    }
  }
  stamp(8);
}

template <int kDim, typename Stored>
struct Shapes {
  using Tile = TileShape<kDim, 1, 4, kDim <= 128 ? 64 : 32, Stored>;
  static constexpr int kBlocks = kDim <= 256 ? 4 : 2;
};

// How many clusters of each size that is a power of two run at once.
std::array<int, kMostSplits + 1> clusters_at_once(const void* kernel, int threads, size_t bytes) {
  std::array<int, kMostSplits + 1> counts{};
  for (int size = 2; size <= kMostSplits; size *= 2) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(size), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(size), 1024);
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = bytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    BRAID_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&counts[size], kernel, &config));
  }
  return counts;
}

template <int kDim, typename Stored>
bool launch_attend(Stream& stream, const Arguments& args, const AttendHeadsCall& call) {
  using Tile = typename Shapes<kDim, Stored>::Tile;
  const int kv_heads = static_cast<int>(call.cache.num_kv_heads());
  const int sequences = static_cast<int>(call.sequences.size());
  // By what the tables hold, not by positions: a graph must do for longer texts, too.
  int64_t most_keys = int64_t{args.table.page_capacity} * call.cache.page_tokens();
  if (call.attention.window > 0) most_keys = std::min(most_keys, call.attention.window);
  const int tiles = static_cast<int>(ceil_divide<int64_t>(most_keys, Tile::kKeys)) + 1;
  auto* kernel = attend_before_kernel<Tile, Shapes<kDim, Stored>::kBlocks>;
  const auto bytes_of = [](int group) {
    return sizeof(Shared<Tile>) + static_cast<size_t>(group) * kDim * sizeof(float);
  };
  static const cudaError_t allowed = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes_of(kQueries)));
  BRAID_CUDA_CHECK(allowed);
  const size_t bytes = bytes_of(std::max(args.group, 1));
  // As many splits as find room at once.
  static std::map<size_t, std::array<int, kMostSplits + 1>> known;
  const auto [found, first_time] = known.try_emplace(bytes);
  if (first_time) {
    found->second = clusters_at_once(reinterpret_cast<const void*>(kernel), Tile::kThreads, bytes);
  }
  const auto& rooms = found->second;
  int splits = kMostSplits;
  while (splits > 1 && (splits / 2 >= tiles || kv_heads * sequences > rooms[splits])) splits /= 2;
  if (tiles > splits * kMostTiles) return false;

  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(splits), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(splits), static_cast<unsigned>(kv_heads),
                        static_cast<unsigned>(sequences));
  config.blockDim = dim3(Tile::kThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream.cuda().handle();
  config.attrs = attributes;
  config.numAttrs = 2;
  BRAID_CUDA_CHECK(cudaLaunchKernelEx(
      &config, kernel, args, PagedRows<Stored>(call.cache.keys, call.cache.key_scales),
      PagedRows<Stored>(call.cache.values, call.cache.value_scales)));
  return true;
}

template <typename Stored>
bool launch_attend(Stream& stream, const Arguments& args, const AttendHeadsCall& call) {
  switch (call.q.dim(2)) {
    case 64:
      return launch_attend<64, Stored>(stream, args, call);
    case 128:
      return launch_attend<128, Stored>(stream, args, call);
    case 256:
      return launch_attend<256, Stored>(stream, args, call);
    case 512:
      return launch_attend<512, Stored>(stream, args, call);
    default:
      return false;
  }
}

}  // namespace

#ifdef BRAID_ATTEND_STAMPS
void read_stamps_before(unsigned long long* to) {
  cudaMemcpyFromSymbol(to, attend_stamps, sizeof(attend_stamps));
}
#endif
std::optional<LinearInput> attend_heads_before(Stream& stream, Workspace& workspace,
                                               const AttendHeadsCall& call, bool rounded) {
  const int group = static_cast<int>(call.q.dim(1) / call.cache.num_kv_heads());
  const bool stores = !call.k.empty();
  if (stream.cuda().deterministic() || !stream.cuda().overlaps_kernels() ||
      !tiles_fit(call.cache) || group > kQueries || !rows_are_aligned(call.q) ||
      (stores && !rows_are_aligned(call.k, call.v))) {
    return std::nullopt;
  }
  const HeadOptions& heads = call.heads;
  Arguments args{.q = rows_of<const float>(call.q),
                 .q_norm = heads.q_norm.data<float>(),
                 .normed_values = heads.normed_values,
                 .epsilon = heads.epsilon,
                 .cos = rows_of<const float>(heads.cos),
                 .sin = rows_of<const float>(heads.sin),
                 .pairs = static_cast<int>(heads.cos.dim(1)),
                 .distance = static_cast<int>(heads.pair_distance),
                 .group = group,
                 .window = static_cast<int>(std::min<int64_t>(call.attention.window, 1 << 30)),
                 .scale = call.attention.scale * 1.44269504088896340736f,
                 .table = KvTable::upload(stream.cuda(), call.sequences)};
  if (stores) {
    args.k = rows_of<const float>(call.k);
    args.v = rows_of<const float>(call.v);
    args.k_norm = heads.k_norm.data<float>();
  }
  const int64_t tokens = call.q.dim(0), width = call.q.dim(1) * call.q.dim(2);
  LinearInput result;
  if (rounded) {
    // The widths of such heads need no zeros behind them.
    const PackedRows packed(workspace, tokens, width);
    BRAID_CHECK(packed.padded == width, "heads of {}", call.q.dim(2));
    args.packed = packed.rows();
    result = packed.input(call.q.reshape({tokens, width}));
  } else {
    result.x = workspace.take(DType::kF32, {tokens, width});
    args.out = rows_of<float>(result.x);
  }
  const bool done = call.cache.keys.dtype() == DType::kI8
                        ? launch_attend<int8_t>(stream, args, call)
                        : launch_attend<__nv_bfloat16>(stream, args, call);
  if (!done) return std::nullopt;
  stream.cuda().finish_op("attend_heads");
  return result;
}

}  // namespace braid::cuda

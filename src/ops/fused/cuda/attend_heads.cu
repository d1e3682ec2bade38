#include <algorithm>
#include <array>
#include <bit>
#include <map>

#include "ops/attention/cuda/attention_call.h"
#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/fused/cuda/decode_tile.cuh"
#include "ops/fused/cuda/head.cuh"
#include "ops/fused/cuda/key_ring.cuh"
#include "ops/fused/cuda/packed_rows.cuh"

namespace braid::cuda {
namespace {

constexpr int kMostQueries = 16;  // heads that share a KV head
constexpr int kMostSplits = 16;
constexpr int kGroup = 8;  // keys that lie in one page

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
  int split_shift;        // splits = 1 << split_shift
  int slots;              // of the ring
  Rows<float> out;        // null if:
  Rows<uint16_t> packed;  // bfloat16
};

// Into the shared memory of another block of the cluster, which has begun, and whose barrier at the
// same place as this block's counts the bytes.
__device__ __forceinline__ void push(uint32_t shared, uint32_t barrier, int rank, float2 v) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .u32 to, counter;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\nmapa.shared::cluster.u32 counter, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%3, %4}, "
      "[counter];\n}" ::"r"(shared),
      "r"(barrier), "r"(rank), "f"(v.x), "f"(v.y)
      : "memory");
#endif
}
__device__ __forceinline__ void push(uint32_t shared, uint32_t barrier, int rank, float4 v) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .u32 to, counter;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\nmapa.shared::cluster.u32 counter, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%3, %4, %5, %6}, "
      "[counter];\n}" ::"r"(shared),
      "r"(barrier), "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
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

// Of a barrier that is done with, before other blocks use its memory.
__device__ __forceinline__ void invalidate_barrier(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}

template <typename Shape>
struct Shared {
  static constexpr int kDim = Shape::kDim;
  typename Shape::Shared tile;
  alignas(16) float q_gains[kDim], k_gains[kDim], cos[kDim / 2], sin[kDim / 2];
  uint64_t arrived;  // counts the bytes that follow
  // What the blocks of the cluster have made of this one's share of the elements.
  float2 statistics[kMostSplits][Shape::kQueries];  // largest, sum
  alignas(16) float4 sums[];                        // [group][kDim / splits / 4][splits]

  // The ring is behind it.
  __host__ __device__ static constexpr int bytes(int group) {
    return ceil_divide(static_cast<int>(sizeof(Shared) + group * kDim * sizeof(float)), 128) * 128;
  }
};

// Grid: splits (a cluster), KV heads, sequences. Each block prepares the queries, one of a cluster
// the key and value; then each goes through its share of the keys, and they add up through each
// other's shared memory. Fetching its instructions is a good part of such a kernel's time, so they
// are few. Keys and values come to registers, a tile at a time, or, kRing, through shared memory,
// several tiles ahead.
template <typename Shape, bool kRing>
__global__ void __launch_bounds__(Shape::kThreads, 512 / Shape::kThreads)
    attend_kernel(const __grid_constant__ Arguments args,
                  const __grid_constant__ PagedRows<typename Shape::Stored> keys,
                  const __grid_constant__ PagedRows<typename Shape::Stored> values) {
  using H = Head<Shape::kDim>;
  constexpr int kDim = Shape::kDim, kThreads = Shape::kThreads, kWarps = Shape::kWarps;
  constexpr int kKeys = Shape::kKeys;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<Shared<Shape>*>(shared_bytes);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int kv_head = blockIdx.y, split = blockIdx.x;

  // The tables, and the keys and values of earlier steps, are read ahead of the kernels in front.
  const DeviceSequence sequence = args.table.sequences[blockIdx.z];
  WarpPages pages{args.table.pages(static_cast<int>(blockIdx.z)), 0,
                  args.table.page_capacity <= kWarp, 0};
  if (pages.held && lane < args.table.page_capacity) pages.own = pages.pages[lane];
  const uint32_t arrived = shared_address(&shared.arrived);
  if (threadIdx.x == 0) {
    init_barrier(arrived, 1);
    publish_barriers();
    arrive_and_expect(arrived,
                      args.group * (static_cast<int>(sizeof(float)) * kDim +
                                    (static_cast<int>(sizeof(float2)) << args.split_shift)));
  }
  __syncwarp();
  announce_to_cluster();
  pages.count = sequence.num_pages;
  const int position = sequence.first_position, token = sequence.first_row;
  const int first_seen = args.window > 0 ? max(0, position + 1 - args.window) : 0;
  const int first_group = first_seen / kGroup, groups = position / kGroup + 1 - first_group;
  const int each = (groups + (1 << args.split_shift) - 1) >> args.split_shift;
  const int begin = (first_group + split * each) * kGroup;
  const int end = min(begin + each * kGroup, position + 1);
  const bool stores = args.k.data != nullptr;
  const bool owns_new = stores && begin <= position && position < end;

  DecodeTile<Shape> tile(shared.tile, keys, values, pages, kv_head, first_seen, end,
                         stores ? position : -1);
  const auto find = [&](int group) { return tile.find_group(begin + group * kGroup); };
  KeyRing<Shape> ring(shared_bytes + Shared<Shape>::bytes(args.group), args.slots,
                      (max(end - begin, 0) + kGroup - 1) / kGroup);
  if constexpr (kRing) {
    ring.fill(keys.data, values.data, find);
  } else {
    tile.find(begin);
    tile.find_next(begin + kKeys);
    tile.load_keys(begin);
    tile.load_values(begin);
  }
  {
    const bool first_half = threadIdx.x < kDim / 4;
    const int i = first_half ? threadIdx.x : threadIdx.x - kDim / 4;
    const float* gains = first_half ? args.q_norm : args.k_norm;
    float* to = (first_half ? shared.q_gains : shared.k_gains) + 4 * i;
    if (i < kDim / 4) {
      if (gains != nullptr) {
        copy16_async(shared_address(to), gains + 4 * i, true);
      } else {
        put(to, float4{1, 1, 1, 1});
      }
      if (4 * i < args.pairs) {
        copy16_async(shared_address((first_half ? shared.cos : shared.sin) + 4 * i),
                     (first_half ? args.cos : args.sin)[token] + 4 * i, true);
      }
    }
    commit_copies();
  }
  // Few blocks of such heads find room, so that they need more on its way.
  constexpr bool kPrefetches = kDim > 256 && !kRing;
  if (kPrefetches && begin + kKeys < end) tile.prefetch_next(begin + kKeys);
  await_cluster();
  wait_for_inputs();

  // A warp prepares a head at a time: the new key and value, if they are of this block, and the
  // queries.
  const auto source_of = [&](int index) {
    return index >= 2   ? args.q[token] + (kv_head * args.group + index - 2) * kDim
           : index == 0 ? args.k[token] + kv_head * kDim
                        : args.v[token] + kv_head * kDim;
  };
  const int num_heads = begin < end ? args.group + 2 : 0;
  int index = warp + (owns_new ? 0 : 2);
  H ahead;
  if (index < num_heads) ahead.load(source_of(index), lane);
  wait_for_copies<0>();
  __syncthreads();
#pragma unroll 1
  for (; index < num_heads; index += kWarps) {
    H head = ahead;
    if (index + kWarps < num_heads) ahead.load(source_of(index + kWarps), lane);
    const bool is_key = index == 0, is_value = index == 1;
    if (!is_value || args.normed_values) head.norm(args.epsilon);
    if (!is_value) {
      head.multiply(is_key ? shared.k_gains : shared.q_gains, lane);
      head.turn_vectors(shared.cos, shared.sin, args.pairs, args.distance,
                        shared.tile.scratch[warp], lane);
    }
    if (index >= 2) {
      head.store(shared.tile.queries + (index - 2) * Shape::kQueryRow, lane);
      continue;
    }
    const int64_t at = pages.offset(keys, position) + keys.head_offset(kv_head);
    if constexpr (Shape::kScaled) {
      const float scale = head.to_codes((is_value ? values : keys).fixed_scale);
      if (lane == 0) {
        shared.tile.new_scales[is_value] = scale;
        (is_value ? values : keys).scales[at / kDim] = scale;
      }
    }
    head.store(is_value ? shared.tile.new_value : shared.tile.new_key, lane);
    head.store((is_value ? values.data : keys.data) + at, lane);
  }
  __syncthreads();

  [[maybe_unused]] int key_slot = tile.key_group(), value_slot = tile.value_group(), place = 0;
  int parity = 0;
#pragma unroll 1
  for (int start = begin; start < end; start += kKeys, parity ^= 1) {
    const int next = start + kKeys;
    const bool more = next < end;
    if constexpr (kRing) {
      ring.await_keys(place);
      tile.template take_keys<true>(ring.keys_at(key_slot), start);
    } else if (more) {
      tile.advance(next + kKeys);
    }
    if (owns_new) tile.take_fresh_key(start);
    tile.multiply_keys(parity);
    if (!kRing && more) tile.load_keys(next);
    __syncthreads();
    if constexpr (kRing) {
      ring.refill(place, find);
      ring.await_values(place);
      tile.template take_values<true>(ring.values_at(value_slot), start);
    }
    if (owns_new) tile.take_fresh_value(start);
    tile.multiply_values(start, parity, args.scale);
    if (!more) break;
    if constexpr (kRing) {
      key_slot = ring.later(key_slot), value_slot = ring.later(value_slot), ++place;
    } else {
      tile.load_values(next);
    }
    if (kPrefetches && next + kKeys < end) tile.prefetch_next(next + kKeys);
  }
  tile.finish();

  // Each block of the cluster adds up its share of the elements.
  const int splits = 1 << args.split_shift;
  const int share_shift = Shape::kDimShift - args.split_shift, vector_shift = share_shift - 2;
#pragma unroll
  for (int t = 0; t < Shape::kQueryTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = 8 * t + 2 * tile.q() + i;
      if (query >= args.group) continue;
#pragma unroll
      for (int n = 0; n < Shape::kValueTiles; n += 2) {
        const int element = tile.first_element() + 2 * n, owner = element >> share_shift;
        const int vector = (element & ((1 << share_shift) - 1)) / 4;
        const int place = (query << vector_shift) + vector;
        push(shared_address(&shared.sums[(place << args.split_shift) + split]), arrived, owner,
             float4{tile.weighted[t][n][i], tile.weighted[t][n][2 + i], tile.weighted[t][n + 1][i],
                    tile.weighted[t][n + 1][2 + i]});
      }
    }
    const int query = 8 * t + tile.g();
    if (warp == 0 && query < args.group) {
#pragma unroll 1
      for (int owner = tile.q(); owner < splits; owner += 4) {
        push(shared_address(&shared.statistics[split][query]), arrived, owner,
             float2{tile.largest[t], tile.sum[t]});
      }
    }
  }
  wait_barrier(arrived, 0);
  // Four lanes add up four elements of a query, each every fourth split.
  constexpr int kLanes = 4, kEach = kMostSplits / kLanes;
  const int num_places = args.group << vector_shift;
#pragma unroll 1
  for (int first = 0; first < num_places * kLanes; first += kThreads) {
    const int place = min((first + static_cast<int>(threadIdx.x)) / kLanes, num_places - 1);
    const int query = place >> vector_shift, rank = lane % kLanes;
    float2 parts[kEach];
    float top = -INFINITY, sum = 0;
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int of = n * kLanes + rank;
      parts[n] = of < splits ? shared.statistics[of][query] : float2{-INFINITY, 0};
      top = fmaxf(top, parts[n].x);
    }
#pragma unroll
    for (int d = 1; d < kLanes; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
    float4 v{};
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int of = n * kLanes + rank;
      if (of >= splits) continue;
      const float weight = exp2f(parts[n].x - top);
      const float4 x = shared.sums[(place << args.split_shift) + of];
      sum = fmaf(weight, parts[n].y, sum);
      v = {fmaf(weight, x.x, v.x), fmaf(weight, x.y, v.y), fmaf(weight, x.z, v.z),
           fmaf(weight, x.w, v.w)};
    }
#pragma unroll
    for (int d = 1; d < kLanes; d *= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, d);
      v.x += __shfl_xor_sync(0xffffffffu, v.x, d);
      v.y += __shfl_xor_sync(0xffffffffu, v.y, d);
      v.z += __shfl_xor_sync(0xffffffffu, v.z, d);
      v.w += __shfl_xor_sync(0xffffffffu, v.w, d);
    }
    if (rank != 0 || first + static_cast<int>(threadIdx.x) >= num_places * kLanes) continue;
    const float factor = __fdividef(1, sum);
    v = {v.x * factor, v.y * factor, v.z * factor, v.w * factor};
    const int element = (place & ((1 << vector_shift) - 1)) * 4;
    const int at = (kv_head * args.group + query) * kDim + (split << share_shift) + element;
    if (args.out.data != nullptr) {
      put(args.out[token] + at, v);
    } else {
      store_rounded(args.packed[token], at, v);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) invalidate_barrier(arrived);
}

// How many clusters of each size that is a power of two run at once.
using Rooms = std::array<int, kMostSplits + 1>;
Rooms clusters_at_once(const void* kernel, int threads, size_t bytes) {
  Rooms counts{};
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
    if (cudaOccupancyMaxActiveClusters(&counts[size], kernel, &config) != cudaSuccess) {
      cudaGetLastError();  // a size that this device has not got
      counts[size] = 0;
    }
  }
  return counts;
}

template <typename Shape, bool kRing>
class AttendKernel {
 public:
  static constexpr auto* kKernel = attend_kernel<Shape, kRing>;

  static void allow(int most_bytes) {
    static const bool allowed = [&] {
      BRAID_CUDA_CHECK(
          cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_bytes));
      BRAID_CUDA_CHECK(
          cudaFuncSetAttribute(kKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
      return true;
    }();
    static_cast<void>(allowed);
  }
  // Of blocks with so much shared memory.
  static const Rooms& rooms(size_t bytes) {
    static std::map<size_t, Rooms> known;
    const auto [found, first_time] = known.try_emplace(bytes);
    if (first_time) {
      found->second =
          clusters_at_once(reinterpret_cast<const void*>(kKernel), Shape::kThreads, bytes);
    }
    return found->second;
  }
};

// How a step's keys are shared out.
struct Plan {
  int splits = 0;
  int slots = 0;  // of a block's ring; 0: no ring
  size_t bytes = 0;
};

struct SharedMemory {
  int all = 0, reserved = 0, most = 0;  // of a multiprocessor; for each block; a block's
  SharedMemory() {
    int device = 0;
    BRAID_CUDA_CHECK(cudaGetDevice(&device));
    const auto get = [device](int& value, cudaDeviceAttr attribute) {
      BRAID_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
    };
    get(all, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    get(reserved, cudaDevAttrReservedSharedMemoryPerBlock);
    get(most, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  }
};

// From so many pairs of a sequence and a KV head on, blocks have rings if they may have several
// tiles. Fewer begin beside the product in front, where a ring has no room.
constexpr int kRingClusters = 32;
constexpr int kMostRings = 3;  // on a multiprocessor

// As many splits as find room at once, with as few blocks on a multiprocessor as that takes, so
// that much of a block's keys is on its way from the start.
template <typename Shape>
Plan plan_rings(int group, int clusters, int64_t most_keys) {
  using Kernel = AttendKernel<Shape, true>;
  using Ring = KeyRing<Shape>;
  static const SharedMemory memory;
  Kernel::allow(memory.most);
  const auto plan_of = [&](int splits, int blocks) {
    const int bytes = std::min(memory.all / blocks - memory.reserved, memory.most);
    const int fixed = Shared<Shape>::bytes(group);
    int slots = Ring::kMostSlots;
    while (slots >= Ring::kLeastSlots && fixed + Ring::bytes(slots) > bytes) --slots;
    if (slots < Ring::kLeastSlots) return Plan{};
    return Plan{splits, slots, static_cast<size_t>(fixed + Ring::bytes(slots))};
  };
  for (int splits = kMostSplits; splits >= 2; splits /= 2) {
    if (splits > 2 && splits / 2 * Shape::kKeys >= most_keys) continue;
    for (int blocks = 1; blocks <= kMostRings; ++blocks) {
      const Plan plan = plan_of(splits, blocks);
      if (plan.slots > 0 && clusters <= Kernel::rooms(plan.bytes)[splits]) return plan;
    }
  }
  return Plan{};
}

template <typename Shape, bool kRing>
void launch_planned(Stream& stream, Arguments& args, const AttendHeadsCall& call,
                    const Plan& plan) {
  using Stored = typename Shape::Stored;
  args.split_shift = std::countr_zero(static_cast<unsigned>(plan.splits));
  args.slots = plan.slots;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(plan.splits), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(plan.splits), static_cast<unsigned>(call.cache.num_kv_heads()),
           static_cast<unsigned>(call.sequences.size()));
  config.blockDim = dim3(Shape::kThreads);
  config.dynamicSmemBytes = plan.bytes;
  config.stream = stream.cuda().handle();
  config.attrs = attributes;
  config.numAttrs = 2;
  BRAID_CUDA_CHECK(cudaLaunchKernelEx(
      &config, AttendKernel<Shape, kRing>::kKernel, args,
      PagedRows<Stored>(call.cache.keys, call.cache.key_scales, call.cache.static_scales.key),
      PagedRows<Stored>(call.cache.values, call.cache.value_scales,
                        call.cache.static_scales.value)));
}

template <int kDim, typename Stored, int kQueryTiles>
bool launch_attend(Stream& stream, Arguments& args, const AttendHeadsCall& call) {
  using Shape = DecodeShape<kDim, Stored, kQueryTiles>;
  using Kernel = AttendKernel<Shape, false>;
  const int clusters = static_cast<int>(call.cache.num_kv_heads() * call.sequences.size());
  // By what the tables hold, not by positions: a graph must do for longer texts, too.
  int64_t most_keys = int64_t{args.table.page_capacity} * call.cache.page_tokens();
  if (call.attention.window > 0) most_keys = std::min(most_keys, call.attention.window);
  if (most_keys > kMostAttendedKeys) return false;
  const auto bytes_of = [](int group) { return Shared<Shape>::bytes(group); };
  Kernel::allow(bytes_of(Shape::kQueries));
  Plan plan{.bytes = static_cast<size_t>(bytes_of(std::max(args.group, 1)))};
  const Rooms& rooms = Kernel::rooms(plan.bytes);
  // As many splits as find room at once, but two at least: blocks push their results.
  plan.splits = kMostSplits;
  while (plan.splits > 2 &&
         (plan.splits / 2 * Shape::kKeys >= most_keys || clusters > rooms[plan.splits])) {
    plan.splits /= 2;
  }
  // Of heads as layers with many KV heads have them.
  if constexpr (kDim == 256 && !Shape::kScaled) {
    if (clusters >= kRingClusters && plan.splits * Shape::kKeys < most_keys) {
      const Plan rings = plan_rings<Shape>(std::max(args.group, 1), clusters, most_keys);
      if (rings.slots > 0) {
        launch_planned<Shape, true>(stream, args, call, rings);
        return true;
      }
    }
  }
  launch_planned<Shape, false>(stream, args, call, plan);
  return true;
}

template <int kDim, typename Stored>
bool launch_attend(Stream& stream, Arguments& args, const AttendHeadsCall& call) {
  return args.group <= 8 ? launch_attend<kDim, Stored, 1>(stream, args, call)
                         : launch_attend<kDim, Stored, 2>(stream, args, call);
}

template <typename Stored>
bool launch_attend(Stream& stream, Arguments& args, const AttendHeadsCall& call) {
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

std::optional<LinearInput> attend_heads(Stream& stream, Workspace& workspace,
                                        const AttendHeadsCall& call, bool rounded) {
  const int group = static_cast<int>(call.q.dim(1) / call.cache.num_kv_heads());
  const bool stores = !call.k.empty();
  if (stream.cuda().deterministic() || !stream.cuda().overlaps_kernels() ||
      !tiles_fit(call.cache) || group > kMostQueries || !rows_are_aligned(call.q) ||
      (stores && !rows_are_aligned(call.k, call.v))) {
    return std::nullopt;
  }
  const HeadOptions& heads = call.heads;
  if (heads.cos.dim(1) % 4 != 0 || heads.pair_distance % 4 != 0 ||
      !rows_are_aligned(heads.cos, heads.sin)) {
    return std::nullopt;
  }
  // Cosines and sines, and keys that another layer has stored, are read ahead.
  BRAID_CHECK(!stream.cuda().next_begins_ahead(), "attention");
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

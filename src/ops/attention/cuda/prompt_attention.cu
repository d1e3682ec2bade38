// Compiled for sm_90a alone.

#include "ops/attention/cuda/paged_store.cuh"
#include "ops/attention/cuda/prompt_attention.h"
#include "ops/attention/cuda/query_tiles.cuh"
#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/fused/cuda/head.cuh"
#include "ops/linear/cuda/warpgroup.cuh"

namespace braid::cuda {
namespace {

// Two groups of four warps have 64 queries each; a third one, which leaves most of its registers to
// them, copies keys and values, two tiles ahead. In shared memory, queries, keys and values are in
// pieces of 64 columns, with rows of 128 bytes as tensor maps order them.
constexpr int kDim = 256, kKeys = 64, kStages = 2;
constexpr int kGroupThreads = 128, kGroupQueries = 64;
constexpr int kComputeWarps = 2 * kGroupThreads / kWarp;
constexpr int kThreads = 3 * kGroupThreads;
constexpr int kComputeRegisters = 232, kCopyRegisters = 40;
constexpr int kWarpQueries = 16;
constexpr int kPieces = kDim / 64;
constexpr int kQueryPieceBytes = kPromptQueries * 128, kKeyPieceBytes = kKeys * 128;
constexpr int kQueryBytes = kPieces * kQueryPieceBytes, kTileBytes = kPieces * kKeyPieceBytes;
static_assert(2 * kGroupQueries == kPromptQueries);

struct Barriers {
  uint64_t keys_full[kStages], keys_empty[kStages], values_full[kStages], values_empty[kStages];
};
constexpr int kSharedBytes =
    kQueryBytes + 2 * kStages * kTileBytes + static_cast<int>(sizeof(Barriers));
static_assert(kSharedBytes <= 227 << 10);

struct PromptArguments : QueryArguments {
  using QueryArguments::QueryArguments;
  CUtensorMap keys, values;             // boxes of box_rows rows that lie in one page
  int box_rows, page_rows, page_shift;  // page_rows: from a page to the next one
  uint32_t group_inverse;  // n / group = n · group_inverse / 2^32 for n < 2^32 / group
};

// Parities of the barriers of tile i, which is in stage i % kStages.
__device__ __forceinline__ int stage_of(int tile) { return tile % kStages; }
__device__ __forceinline__ uint32_t parity_of(int tile) { return tile / kStages % 2; }

// Between the warps of one group.
__device__ __forceinline__ void sync_group(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kGroupThreads) : "memory");
}
// Keeps the compiler from moving what uses results of products in front of the wait for them.
template <int kCount>
__device__ __forceinline__ void hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void hold(uint32_t (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
}
// Of denormal results zero.
__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ uint32_t rounded_pair(float a, float b) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// The work of a block.
struct Work {
  DeviceSequence sequence;
  int kv_head, first_query, num_queries;
  int seen_begin, seen_end;  // positions that some query sees
  int all_begin, all_end;    // and those that all see
  int begin, num_tiles;      // of keys, from position `begin` on

  __device__ __forceinline__ Work(const PromptArguments& args)
      : sequence(), kv_head(static_cast<int>(blockIdx.x)) {
    const QueryTile where = args.tiles[blockIdx.y];
    sequence = args.table.sequences[where.sequence];
    first_query = where.first_query;
    num_queries = min(kPromptQueries, sequence.num_rows * args.group - first_query);
    const int first = position_of(args, 0), last = position_of(args, num_queries - 1);
    seen_begin = first_seen(args, first), seen_end = last + 1;
    all_begin = first_seen(args, last), all_end = first + 1;
    begin = seen_begin / kKeys * kKeys;
    num_tiles = (seen_end - begin + kKeys - 1) / kKeys;
  }
  __device__ int row_of(const PromptArguments& args, int query) const {
    const uint32_t n = static_cast<uint32_t>(first_query + query);
    return static_cast<int>(args.group > 1 ? __umulhi(n, args.group_inverse) : n);
  }
  __device__ int position_of(const PromptArguments& args, int query) const {
    return sequence.first_position + row_of(args, query);
  }
  __device__ static int first_seen(const PromptArguments& args, int position) {
    return args.window > 0 ? max(0, position + 1 - args.window) : 0;
  }
  template <typename T>
  __device__ T* head_of(const PromptArguments& args, const Rows<T>& rows, int query) const {
    const int row = row_of(args, query), head = first_query + query - row * args.group;
    return rows[sequence.first_row + row] + (kv_head * args.group + head) * kDim;
  }
};

// By one warp: a lane copies a box of each tile.
__device__ __forceinline__ void bring(const PromptArguments& args, const Work& work,
                                      Barriers& barriers, uint32_t stages) {
  const int lane = threadIdx.x % kWarp, piece = lane % kPieces;
  const int row = lane / kPieces * args.box_rows;
  const int32_t* const pages = args.table.pages(work.sequence);
  const int page_tokens = 1 << args.page_shift, num_pages = work.sequence.num_pages;
  const auto find = [&](int tile) {
    const int position = work.begin + tile * kKeys + row;
    // In the place of a page that no query sees, one that is there.
    const int seen = min(max(position, work.seen_begin), work.seen_end - 1) >> args.page_shift;
    return pages[seen < num_pages ? seen : seen % num_pages] * args.page_rows +
           work.kv_head * page_tokens + (position & (page_tokens - 1));
  };
  int from = find(0);
  wait_for_inputs();
  publish_global_to_copies();
  for (int tile = 0; tile < work.num_tiles; ++tile) {
    const int next = tile + 1 < work.num_tiles ? find(tile + 1) : 0;
    const int stage = stage_of(tile);
    const auto copy = [&](uint64_t* full, uint64_t* empty, const CUtensorMap* map, uint32_t to) {
      // The first round finds the stages empty.
      wait_barrier(shared_address(&empty[stage]), parity_of(tile) ^ 1);
      if (lane == 0) arrive_and_expect(shared_address(&full[stage]), kTileBytes);
      __syncwarp();
      if (row < kKeys) {
        copy_box(to + piece * kKeyPieceBytes + row * 128, map, piece * 64, from,
                 shared_address(&full[stage]));
      }
    };
    const uint32_t to = stages + 2 * stage * kTileBytes;
    copy(barriers.keys_full, barriers.keys_empty, &args.keys, to);
    copy(barriers.values_full, barriers.values_empty, &args.values, to + kTileBytes);
    from = next;
  }
}

// A warp's queries to shared memory, normed and turned if need be; several at once, whose loads and
// sums are under way together.
__device__ __forceinline__ void prepare_queries(const PromptArguments& args, const Work& work,
                                                int warp, int lane, unsigned char* queries) {
  using H = Head<kDim>;
  constexpr int kAtOnce = 8;
  const bool normed = args.heads.norm != nullptr;
  typename H::Row gains;
  gains.load(args.heads.norm, kDim, lane);
  wait_for_inputs();
#pragma unroll 1
  for (int first = 0; first < kWarpQueries; first += kAtOnce) {
    H head[kAtOnce];
    float4 cosines[kAtOnce], sines[kAtOnce];
    const int row = warp * kWarpQueries + first;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int query = min(row + i, work.num_queries - 1);
      head[i].load(work.head_of(args, args.q, query), lane);
      if (!normed) continue;
      const int64_t at = (work.sequence.first_row + work.row_of(args, query)) * args.heads.stride +
                         min(H::element(0, lane), args.heads.pairs - 4);
      cosines[i] = *reinterpret_cast<const float4*>(args.heads.cos + at);
      sines[i] = *reinterpret_cast<const float4*>(args.heads.sin + at);
    }
    if (normed) {
      float own = 0;  // of head lane % kAtOnce
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < H::kKept; ++j) sum += sum_of_squares(head[i].v[j]);
        sum = warp_sum(sum);
        if (lane % kAtOnce == i) own = sum;
      }
      own = inverse_rms(own, kDim, args.heads.epsilon);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float factor = __shfl_sync(0xffffffffu, own, i);
#pragma unroll
        for (int j = 0; j < H::kKept; ++j) {
          head[i].v[j] = times(times(head[i].v[j], factor), gains.v[j]);
        }
      }
      if (H::element(0, lane) < args.heads.pairs) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          head[i].turn_in_lane({{cosines[i]}}, {{sines[i]}}, args.heads.pairs, lane);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int j = 0; j < H::kKept; ++j) {
        const int element = H::element(j, lane), chunk = element % 64 / 8;
        unsigned char* const to = queries + element / 64 * kQueryPieceBytes + (row + i) * 128 +
                                  (chunk ^ (row + i) % 8) * 16 + element % 8 * 2;
        put(reinterpret_cast<__nv_bfloat16*>(to),
            row + i < work.num_queries ? head[i].v[j] : float4{});
      }
    }
  }
}

// A group of warps with its queries, whose lanes have rows l / 4 and l / 4 + 8 of their warp.
class Computer {
 public:
  __device__ __forceinline__ Computer(const PromptArguments& args, const Work& work,
                                      Barriers& barriers, unsigned char* queries, uint32_t stages)
      : args_(args), work_(work), barriers_(barriers), queries_(queries), stages_(stages) {}

  __device__ __forceinline__ void run() {
    prepare_queries(args_, work_, warp_, lane_, queries_);
    publish_to_tensor_cores();
    sync_group(group_);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = row_ + 8 * i;
      const int position = work_.position_of(args_, query);
      const bool there = query < work_.num_queries;
      row_begin_[i] = there ? Work::first_seen(args_, position) : 0;
      row_end_[i] = there ? position + 1 : 0;
    }
    multiply_keys(0);
    wait_for_products<0>();
    hold(scores_);
    release(barriers_.keys_empty, 0);
    float factor[2];
    weigh(0, factor);
    round_weights();
    const int last = work_.num_tiles - 1;
#pragma unroll 1
    for (int tile = 0; tile < last; ++tile) {
      multiply_keys(tile + 1);
      multiply_values(tile);
      wait_for_products<1>();
      hold(scores_);
      release(barriers_.keys_empty, tile + 1);
      weigh(tile + 1, factor);
      wait_for_products<0>();
      hold(weighted_);
      release(barriers_.values_empty, tile);
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) weighted_[i] *= factor[i / 2 % 2];
      round_weights();
      hold(weighted_);
      hold(weights_);
    }
    multiply_values(last);
    wait_for_products<0>();
    hold(weighted_);
    store();
  }

 private:
  __device__ __forceinline__ uint32_t keys_at(int tile) const {
    return stages_ + 2 * stage_of(tile) * kTileBytes;
  }
  __device__ __forceinline__ void release(uint64_t* empty, int tile) const {
    __syncwarp();
    if (lane_ == 0) arrive(shared_address(&empty[stage_of(tile)]));
  }

  // Begins with the scores of a tile.
  __device__ __forceinline__ void multiply_keys(int tile) {
    wait_barrier(shared_address(&barriers_.keys_full[stage_of(tile)]), parity_of(tile));
    uint64_t queries = tile_descriptor(shared_address(queries_) + group_ * kGroupQueries * 128);
    uint64_t keys = tile_descriptor(keys_at(tile));
    // Not to be kept for the next tile with all that is added to them, for which there is no room.
    asm volatile("" : "+l"(queries), "+l"(keys));
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) scores_[i] = 0;
    hold(scores_);
    begin_products();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const int piece = step / 4, within = step % 4 * 32;
      WarpgroupProduct<kKeys>::add(scores_, queries + (piece * kQueryPieceBytes + within) / 16,
                                   keys + (piece * kKeyPieceBytes + within) / 16);
    }
    commit_products();
  }

  // Scores become weights; what was summed before is to be multiplied by `factor`.
  __device__ __forceinline__ void weigh(int tile, float (&factor)[2]) {
    const int start = work_.begin + tile * kKeys;
    if (start < work_.all_begin || start + kKeys > work_.all_end) {
      const int first = start + lane_ % 4 * 2;
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        const int position = first + i / 4 * 8 + i % 2, row = i / 2 % 2;
        if (position < row_begin_[row] || position >= row_end_[row]) scores_[i] = -INFINITY;
      }
    }
    float used[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float top = -INFINITY;
#pragma unroll
      for (int i = 0; i < kKeys / 2; i += 4) {
        top = fmaxf(top, fmaxf(scores_[i + 2 * row], scores_[i + 2 * row + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      top = fmaxf(top, largest_[row]);
      // Rounded alike, so that the factor of one that stays is 1.
      used[row] = top == -INFINITY ? 0 : __fmul_rn(top, args_.scale);
      factor[row] = power_of_2(__fsub_rn(__fmul_rn(largest_[row], args_.scale), used[row]));
      largest_[row] = top;
      sum_[row] *= factor[row];
    }
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      scores_[i] = power_of_2(fmaf(scores_[i], args_.scale, -used[i / 2 % 2]));
    }
  }
  // As the products take them, which must be done with the last ones.
  __device__ __forceinline__ void round_weights() {
#pragma unroll
    for (int i = 0; i < kKeys / 2; i += 2) {
      const uint32_t pair = rounded_pair(scores_[i], scores_[i + 1]);
      weights_[i / 2] = pair;
      // The sum of the rounded ones: then they are shares of 1.
      sum_[i / 2 % 2] += __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u);
    }
  }

  // Begins to add a tile's weighted values.
  __device__ __forceinline__ void multiply_values(int tile) {
    wait_barrier(shared_address(&barriers_.values_full[stage_of(tile)]), parity_of(tile));
    const uint32_t values = keys_at(tile) + kTileBytes;
    const int start = work_.begin + tile * kKeys;
    // What is in the places of values that no query sees may be anything.
    if (start < work_.seen_begin || start + kKeys > work_.seen_end) clear_unseen(values, start);
    const uint64_t descriptor = turned_descriptor(values, kKeyPieceBytes);
    begin_products();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      const uint32_t a[4] = {weights_[4 * step], weights_[4 * step + 1], weights_[4 * step + 2],
                             weights_[4 * step + 3]};
      add_turned_product(weighted_, a, descriptor + step * 2048 / 16);
    }
    commit_products();
  }
  // Both groups do, with the same result.
  __device__ __forceinline__ void clear_unseen(uint32_t values, int start) const {
    constexpr int kChunks = kDim / 8;
#pragma unroll 1
    for (int i = threadIdx.x % kGroupThreads; i < kKeys * kChunks; i += kGroupThreads) {
      const int row = i / kChunks, chunk = i % kChunks, position = start + row;
      if (position >= work_.seen_begin && position < work_.seen_end) continue;
      const uint32_t to = values + chunk / 8 * kKeyPieceBytes + row * 128 + chunk % 8 * 16;
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
    publish_to_tensor_cores();
    sync_group(group_);
  }

  __device__ __forceinline__ void store() {
    float factor[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      sum_[row] += __shfl_xor_sync(0xffffffffu, sum_[row], 1);
      sum_[row] += __shfl_xor_sync(0xffffffffu, sum_[row], 2);
      factor[row] = 1 / sum_[row];
    }
    if (args_.packed.data == nullptr) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        if (row_ + 8 * row >= work_.num_queries) continue;
        float* const out = work_.head_of(args_, args_.out, row_ + 8 * row) + lane_ % 4 * 2;
#pragma unroll
        for (int i = 0; i < kDim / 2; i += 4) {
          *reinterpret_cast<float2*>(out + 2 * i) = float2{
              weighted_[i + 2 * row] * factor[row], weighted_[i + 2 * row + 1] * factor[row]};
        }
      }
      return;
    }
    // By whole rows, through the place of the queries, which are done with.
    sync_group(group_);
#pragma unroll
    for (int i = 0; i < kDim / 2; i += 2) {
      const int row = row_ + 8 * (i / 2 % 2), chunk = i / 4;
      *reinterpret_cast<uint32_t*>(queries_ + chunk / 8 * kQueryPieceBytes + row * 128 +
                                   (chunk % 8 ^ row % 8) * 16 + lane_ % 4 * 4) =
          rounded_pair(weighted_[i] * factor[i / 2 % 2], weighted_[i + 1] * factor[i / 2 % 2]);
    }
    __syncwarp();
#pragma unroll 4
    for (int i = 0; i < kWarpQueries; ++i) {
      const int row = warp_ * kWarpQueries + i;
      if (row >= work_.num_queries) break;
      reinterpret_cast<uint4*>(work_.head_of(args_, args_.packed, row))[lane_] =
          *reinterpret_cast<const uint4*>(queries_ + lane_ / 8 * kQueryPieceBytes + row * 128 +
                                          (lane_ % 8 ^ row % 8) * 16);
    }
  }

  const PromptArguments& args_;
  const Work& work_;
  Barriers& barriers_;
  unsigned char* queries_;
  uint32_t stages_;
  const int lane_ = threadIdx.x % kWarp, warp_ = threadIdx.x / kWarp;
  const int group_ = threadIdx.x / kGroupThreads;
  const int row_ = warp_ * kWarpQueries + lane_ / 4;
  int row_begin_[2], row_end_[2];  // the keys that the two rows see
  float largest_[2] = {-INFINITY, -INFINITY}, sum_[2] = {};
  float scores_[kKeys / 2], weighted_[kDim / 2] = {};
  uint32_t weights_[kKeys / 4];
};

// Grid: KV heads, tiles.
__global__ void __launch_bounds__(kThreads, 1)
    prompt_attention_kernel(const __grid_constant__ PromptArguments args) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  unsigned char* const stages = shared_bytes + kQueryBytes;
  auto& barriers = *reinterpret_cast<Barriers*>(stages + 2 * kStages * kTileBytes);
  if (threadIdx.x == 0) {
    prefetch_map(&args.keys);
    prefetch_map(&args.values);
    for (int i = 0; i < kStages; ++i) {
      init_barrier(shared_address(&barriers.keys_full[i]), 1);
      init_barrier(shared_address(&barriers.values_full[i]), 1);
      init_barrier(shared_address(&barriers.keys_empty[i]), kComputeWarps);
      init_barrier(shared_address(&barriers.values_empty[i]), kComputeWarps);
    }
    publish_barriers();
  }
  // The tables are read ahead of the kernels in front.
  const Work work(args);
  __syncthreads();
  if (threadIdx.x >= kComputeWarps * kWarp) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCopyRegisters));
    if (threadIdx.x / kWarp == kComputeWarps) {
      bring(args, work, barriers, shared_address(stages));
    } else {
      wait_for_inputs();
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kComputeRegisters));
    Computer(args, work, barriers, shared_bytes, shared_address(stages)).run();
  }
}

bool runs_here() {
  const bool found =
      cudaFuncSetAttribute(prompt_attention_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           kSharedBytes) == cudaSuccess;
  if (!found) cudaGetLastError();  // clears it
  return found;
}

CUtensorMap map_of(const TensorView& store, int box_rows) {
  const int64_t page_rows = store.row_stride() / kDim;
  return make_tensor_map(store.raw(), (store.dim(0) - 1) * page_rows + store.dim(1) * store.dim(2),
                         kDim, kDim, box_rows);
}

}  // namespace

bool prompt_attention_can(const AttentionCall& call) {
  static const bool can = runs_here();
  const PagedKv& cache = call.cache;
  return can && call.stream.cuda().overlaps_kernels() && call.head_dim() == kDim &&
         cache.keys.dtype() == DType::kBF16 && cache.page_tokens() >= 8 &&
         cache.keys.row_stride() % kDim == 0 &&
         cache.keys.row_stride() == cache.values.row_stride() && rows_are_aligned(call.q) &&
         (call.packed != nullptr || rows_are_aligned(call.out)) && call.options.scale > 0 &&
         (call.heads.norm == nullptr || call.heads.pairs > 0);
}

void prompt_attention(const AttentionCall& call, const QueryTile* tiles, int num_tiles) {
  const int page_tokens = static_cast<int>(call.cache.page_tokens());
  PromptArguments args(call);
  args.tiles = tiles;
  args.box_rows = std::min(page_tokens, kKeys);
  args.keys = map_of(call.cache.keys, args.box_rows);
  args.values = map_of(call.cache.values, args.box_rows);
  args.page_rows = static_cast<int>(call.cache.keys.row_stride() / kDim);
  args.page_shift = std::countr_zero(static_cast<unsigned>(page_tokens));
  args.group_inverse = static_cast<uint32_t>((uint64_t{1} << 32) / args.group + 1);
  launch(call.stream, prompt_attention_kernel,
         dim3(static_cast<unsigned>(call.kv_heads()), static_cast<unsigned>(num_tiles)), kThreads,
         kSharedBytes, args);
}

}  // namespace braid::cuda

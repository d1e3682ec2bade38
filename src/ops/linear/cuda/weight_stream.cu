#include <algorithm>

#include "base/check.h"
#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/elementwise/cuda/activations.cuh"
#include "ops/linear/cuda/tensor_core.cuh"
#include "ops/linear/cuda/weight_stream.h"

namespace braid::cuda {
namespace {

// Warps of a block: eight multiply, one brings weights, one inputs, one finds out who the experts
// are.
constexpr int kMultipliers = 8;
constexpr int kWeightWarp = 8, kInputWarp = 9, kListWarp = 10;
constexpr int kStreamThreads = 11 * kWarp;
constexpr int kMultiplierThreads = kMultipliers * kWarp;

// A slot of the ring: a box of 16 rows × 64 columns for each multiplying warp, and inputs.
constexpr int kBoxColumns = 64;
constexpr int kWarpBytes = 16 * kBoxColumns * 2;
constexpr int kSlotBytes = kMultipliers * kWarpBytes;
constexpr int kMostSlots = 12;
constexpr int kBoxAlignment = 1024;
// Shared memory of a block: what leaves room for the small kernels that come next.
constexpr int kBlockBytes = 200 << 10;

// Tokens of one expert, or of all, that meet its weights together.
struct TokenTile {
  uint16_t expert, count;
  int32_t begin;
};

struct Barriers {
  uint64_t full[kMostSlots], empty[kMostSlots], listed;
  int num_listed;
};

// The stages of all units of a block in turn, as each role goes through them.
class Ring {
 public:
  __device__ explicit Ring(int slots) : slots_(slots) {}
  __device__ int slot() const { return slot_; }
  __device__ uint32_t parity() const { return parity_; }
  __device__ void advance() {
    if (++slot_ == slots_) slot_ = 0, parity_ ^= 1;
  }

 private:
  int slots_, slot_ = 0;
  uint32_t parity_ = 0;
};

// Rows of a box; rows that are copied singly lie 16 bytes further apart, in other banks.
constexpr int kInputStride = 2 * kBoxColumns, kCopiedStride = kInputStride + 16;
__host__ __device__ constexpr int partial_stride(int row_warps) { return 16 * row_warps + 4; }
// Of one unit, in floats: [column warps][tokens][rows].
__host__ __device__ constexpr int partial_floats(int row_warps, int tokens) {
  return kMultipliers / row_warps * tokens * partial_stride(row_warps);
}

template <int kTokenTiles>
struct Block {
  static constexpr int kTokens = 8 * kTokenTiles;

  const StreamPlan& plan;
  Barriers& barriers;
  TokenTile* list;
  uint32_t weights, inputs;  // of the ring's first slot
  float* partials;           // of two units
  int partial_size;

  __device__ uint32_t full(int slot) const { return shared_address(&barriers.full[slot]); }
  __device__ uint32_t empty(int slot) const { return shared_address(&barriers.empty[slot]); }

  // Calls run(phase, index of the tile, tile, unit) for this block's units.
  template <typename Run>
  __device__ void for_each_unit(const Run& run) const {
    int next = blockIdx.x;
    for (int p = 0; p < plan.num_phases; ++p) {
      const StreamPhase& phase = plan.phases[p];
      int tiles = (plan.tokens + kTokens - 1) / kTokens;
      if (phase.routed) {
        wait_barrier(shared_address(&barriers.listed), 0);
        tiles = barriers.num_listed;
      }
      const int units = phase.units();
      for (; next < tiles * units; next += gridDim.x) {
        const int tile = next / units;
        const TokenTile tokens =
            phase.routed
                ? list[tile]
                : TokenTile{0, static_cast<uint16_t>(min(kTokens, plan.tokens - tile * kTokens)),
                            tile * kTokens};
        run(phase, tile, tokens, next - tile * units);
      }
      next -= tiles * units;
    }
  }

  __device__ void list_experts() {
    wait_for_inputs();
    const int lane = threadIdx.x % kWarp;
    const int each = (plan.experts + kWarp - 1) / kWarp;
    const int first = min(lane * each, plan.experts), last = min(first + each, plan.experts);
    int tiles = 0;
    for (int e = first; e < last; ++e) {
      tiles += (plan.offsets[e + 1] - plan.offsets[e] + kTokens - 1) / kTokens;
    }
    int through = tiles;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, through, distance);
      if (lane >= distance) through += other;
    }
    int at = through - tiles;
    for (int e = first; e < last; ++e) {
      const int end = plan.offsets[e + 1];
      for (int begin = plan.offsets[e]; begin < end; begin += kTokens) {
        list[at++] = {static_cast<uint16_t>(e), static_cast<uint16_t>(min(kTokens, end - begin)),
                      begin};
      }
    }
    if (lane == kWarp - 1) barriers.num_listed = through;
    __syncwarp();
    if (lane == 0) arrive(shared_address(&barriers.listed));
  }

  __device__ void bring_weights() {
    Ring ring(plan.slots);
    for_each_unit([&](const StreamPhase& phase, int, const TokenTile& tokens, int unit) {
      const int row = tokens.expert * phase.expert_rows + unit * phase.rows_a_unit();
      const int column_warps = kMultipliers / phase.row_warps;
      for (int step = 0; step < phase.steps; ++step, ring.advance()) {
        wait_barrier(empty(ring.slot()), ring.parity() ^ 1);
        const uint32_t barrier = full(ring.slot());
        arrive_and_expect(barrier, kSlotBytes);
        uint32_t to = weights + ring.slot() * kSlotBytes;
        for (int k = 0; k < column_warps; ++k, to += phase.row_warps * kWarpBytes) {
          const int column = (step * column_warps + k) * kBoxColumns;
          stream_box(to, &phase.weights, column, row, barrier);
          if (phase.gated) {
            stream_box(to + phase.row_warps * kWarpBytes / 2, &phase.up, column, row + phase.up_row,
                       barrier);
          }
        }
      }
    });
  }

  __device__ void bring_inputs() {
    const int lane = threadIdx.x % kWarp;
    Ring ring(plan.slots);
    bool waited = false;
    publish_to_copies();
    for_each_unit([&](const StreamPhase& phase, int tile, const TokenTile& tokens, int) {
      if (!waited && !phase.early) {
        wait_for_inputs();
        publish_to_copies();
        waited = true;
      }
      const int column_warps = kMultipliers / phase.row_warps;
      const uint16_t* from = nullptr;
      if (phase.x_rows != nullptr && lane < tokens.count) {
        from = phase.x + phase.x_rows[tokens.begin + lane] * phase.x_stride;
      }
      const uint32_t bytes = phase.x_rows != nullptr ? tokens.count * kInputStride
                                                     : column_warps * kTokens * kInputStride;
      if (phase.awaits >= 0) {
        const int32_t* counter = plan.counters + phase.awaits + tile;
        int count = 0;
        do {
          asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                       : "=r"(count)
                       : "l"(counter)
                       : "memory");
        } while (count < phase.awaited);
        publish_to_copies();
      }
      for (int step = 0; step < phase.steps; ++step, ring.advance()) {
        wait_barrier(empty(ring.slot()), ring.parity() ^ 1);
        const uint32_t barrier = full(ring.slot());
        if (lane == 0) arrive_and_expect(barrier, bytes);
        __syncwarp();
        const uint32_t to = inputs + ring.slot() * plan.slot_inputs;
        if (phase.x_rows == nullptr) {
          if (lane < column_warps) {
            copy_box(to + lane * kTokens * kInputStride, &phase.inputs,
                     (step * column_warps + lane) * kBoxColumns, tokens.begin, barrier);
          }
        } else if (lane < tokens.count) {
          copy_bytes(to + lane * kCopiedStride, from + step * kBoxColumns, kInputStride, barrier);
        }
      }
    });
    if (!waited) wait_for_inputs();
  }

  __device__ void multiply() {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    Ring ring(plan.slots);
    int parity = 0;
    for_each_unit([&](const StreamPhase& phase, int tile, const TokenTile& tokens, int unit) {
      const int row_warp = warp % phase.row_warps, column_warp = warp / phase.row_warps;
      const bool boxed = phase.x_rows == nullptr;
      const int stride = boxed ? kInputStride : kCopiedStride;
      const int turned = boxed ? lane % 8 : 0;  // the chunks of a box's row are permuted
      const uint32_t own_weights = weights + warp * kWarpBytes + lane % 16 * (2 * kBoxColumns);
      const uint32_t own_inputs = inputs + column_warp * kTokens * kInputStride + lane % 8 * stride;
      float sums[kTokenTiles][4] = {};
      for (int step = 0; step < phase.steps; ++step, ring.advance()) {
        wait_barrier(full(ring.slot()), ring.parity());
        const uint32_t a_at = own_weights + ring.slot() * kSlotBytes;
        const uint32_t b_at = own_inputs + ring.slot() * plan.slot_inputs;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t b[kTokenTiles][4];
#pragma unroll
          for (int t = 0; t < kTokenTiles; ++t) {
            load_matrices(b[t], b_at + t * 8 * stride + ((half * 4 + lane / 8) ^ turned) * 16);
          }
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            uint32_t a[4];
            load_matrices(a, a_at + (((half * 2 + k) * 2 + lane / 16) ^ (lane % 8)) * 16);
#pragma unroll
            for (int t = 0; t < kTokenTiles; ++t) {
              multiply_add(sums[t], a, b[t][2 * k], b[t][2 * k + 1]);
            }
          }
        }
        __syncwarp();
        if (lane == 0) arrive(empty(ring.slot()));
      }

      // The sums of all warps meet in shared memory; two units take turns in it.
      float* partial = partials + parity * partial_size;
      parity ^= 1;
      const int row_stride = partial_stride(phase.row_warps);
      const int rows = 16 * phase.row_warps;
      float* own = partial + column_warp * kTokens * row_stride + row_warp * 16 + lane / 4;
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          own[(8 * t + 2 * (lane % 4) + i % 2) * row_stride + i / 2 * 8] = sums[t][i];
        }
      }
      sync_multipliers();
      const auto sum_of = [&](int token, int row) {
        const float* at = partial + token * row_stride + row;
        float sum = 0;
        for (int k = 0; k < kMultipliers; k += phase.row_warps, at += kTokens * row_stride) {
          sum += *at;
        }
        return sum;
      };
      if (!phase.gated) {
        const int first_row = unit * rows;
        for (int i = threadIdx.x; i < tokens.count * rows; i += kMultiplierThreads) {
          const int token = i / rows, row = i % rows;
          if (first_row + row < phase.rows) {
            phase.y[(tokens.begin + token) * phase.out_stride + first_row + row] =
                sum_of(token, row);
          }
        }
      } else {
        const int half = rows / 2, first_row = unit * half;
        const auto gated = [&](int token, int row) {
          const float gate = sum_of(token, row), up = sum_of(token, half + row);
          return (phase.activation == Activation::kSilu ? silu(gate) : gelu_tanh(gate)) * up;
        };
        for (int i = threadIdx.x; i < tokens.count * half / 2; i += kMultiplierThreads) {
          const int token = i / (half / 2), row = i % (half / 2) * 2;
          *reinterpret_cast<uint32_t*>(phase.packed + (tokens.begin + token) * phase.out_stride +
                                       first_row + row) =
              pack_bfloat16(gated(token, row), gated(token, row + 1));
        }
      }
      if (phase.counts >= 0) {
        __threadfence();
        publish_to_copies();
        sync_multipliers();
        if (threadIdx.x == 0) {
          __threadfence();
          atomicAdd(plan.counters + phase.counts + tile, 1);
        }
      }
    });
    if (plan.num_counters > 0 && warp == 0) reset_counters();
  }

 private:
  static __device__ void sync_multipliers() {
    asm volatile("bar.sync 1, %0;" ::"n"(kMultiplierThreads) : "memory");
  }

  // Counter 0 counts the blocks that are done; the last one leaves all of them at zero.
  __device__ void reset_counters() {
    const int lane = threadIdx.x % kWarp;
    int last = 0;
    wait_for_inputs();  // which may use them, too
    if (lane == 0) last = atomicAdd(plan.counters, 1) == static_cast<int>(gridDim.x) - 1;
    if (__shfl_sync(0xffffffffu, last, 0) == 0) return;
    for (int i = lane; i < plan.num_counters; i += kWarp) plan.counters[i] = 0;
  }
};

template <int kTokenTiles>
__global__ void __launch_bounds__(kStreamThreads)
    stream_kernel(const __grid_constant__ StreamPlan plan) {
#if __CUDA_ARCH__ >= 900
  __shared__ Barriers barriers;
  extern __shared__ unsigned char unaligned[];
  unsigned char* ring = unaligned + (-shared_address(unaligned) & (kBoxAlignment - 1));
  unsigned char* inputs = ring + plan.slots * kSlotBytes;
  auto* partials = reinterpret_cast<float*>(inputs + plan.slots * plan.slot_inputs);
  int partial_size = 0;
  for (int p = 0; p < plan.num_phases; ++p) {
    partial_size =
        max(partial_size, partial_floats(plan.phases[p].row_warps, Block<kTokenTiles>::kTokens));
  }
  Block<kTokenTiles> block{plan,
                           barriers,
                           reinterpret_cast<TokenTile*>(partials + 2 * partial_size),
                           shared_address(ring),
                           shared_address(inputs),
                           partials,
                           partial_size};
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < plan.slots; ++slot) {
      init_barrier(block.full(slot), 2);
      init_barrier(block.empty(slot), kMultipliers);
    }
    init_barrier(shared_address(&barriers.listed), 1);
    publish_barriers();
  }
  __syncthreads();
  if (warp == kWeightWarp) {
    if (threadIdx.x % kWarp == 0) block.bring_weights();
  } else if (warp == kInputWarp) {
    block.bring_inputs();
  } else if (warp == kListWarp) {
    if (plan.experts > 0) block.list_experts();
  } else {
    block.multiply();
  }
#endif
}

size_t block_bytes(const StreamPlan& plan, int slots) {
  int partial = 0;
  for (int p = 0; p < plan.num_phases; ++p) {
    partial = std::max(partial, partial_floats(plan.phases[p].row_warps, 8 * plan.token_tiles));
  }
  return kBoxAlignment + static_cast<size_t>(slots) * (kSlotBytes + plan.slot_inputs) +
         2 * partial * sizeof(float) + plan.most_entries * sizeof(TokenTile);
}

int most_block_bytes(Stream& stream) {
  int available = 0;
  BRAID_CUDA_CHECK(cudaDeviceGetAttribute(&available, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                          stream.cuda().device()));
  return std::min(kBlockBytes, available - 1024);  // of which the barriers take some
}

template <int kTokenTiles>
void launch_stream(Stream& stream, const StreamPlan& plan, int blocks) {
  auto* kernel = stream_kernel<kTokenTiles>;
  const size_t bytes = block_bytes(plan, plan.slots);
  static size_t allowed = 0;
  if (bytes > allowed) {
    BRAID_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(bytes)));
    allowed = bytes;
  }
  launch(stream, kernel, static_cast<unsigned>(blocks), kStreamThreads, bytes, plan);
}

}  // namespace

int StreamPlan::most_tiles(bool routed) const {
  const int tile = 8 * token_tiles;
  if (!routed) return ceil_divide(tokens, tile);
  return std::min(pairs, experts + pairs / tile);
}

bool can_stream(Stream& stream, const Products& products) {
  return stream.cuda().overlaps_kernels() && products.format == FormatId::kBF16 &&
         !products.tiles && products.cols % kBoxColumns == 0 && products.packed != nullptr &&
         products.packed_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(products.packed) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(products.weights) % 16 == 0;
}

int stream_token_tiles(int tokens, int experts) {
  const int at_once = experts > 0 ? 2 * ceil_divide(tokens, experts) : tokens;
  return at_once <= 8 ? 1 : at_once <= 16 ? 2 : 4;
}

int stream_row_warps(int rows, int cols) {
  constexpr int kEnoughUnits = 100;
  int row_warps = 8;
  while (row_warps > 2 && rows < kEnoughUnits * 16 * row_warps &&
         cols % (2 * kMultipliers / row_warps * kBoxColumns) == 0) {
    row_warps /= 2;
  }
  return row_warps;
}

StreamPhase stream_phase(const StreamPlan& plan, const Products& products, int row_warps,
                         bool gated) {
  StreamPhase phase{};
  phase.row_warps = row_warps;
  phase.gated = gated;
  phase.rows = products.rows;
  phase.expert_rows = static_cast<int>(products.matrix_bytes / products.row_bytes);
  phase.weights =
      make_tensor_map(products.weights, int64_t{phase.expert_rows} * std::max(products.experts, 1),
                      products.cols, products.cols, phase.rows_a_unit());
  phase.inputs = make_tensor_map(products.packed, products.tokens, products.cols,
                                 products.packed_stride, 8 * plan.token_tiles);
  phase.steps = products.cols / (kMultipliers / row_warps * kBoxColumns);
  phase.routed = products.experts > 0;
  phase.x = products.packed;
  phase.x_stride = products.packed_stride;
  phase.counts = phase.awaits = -1;
  return phase;
}

void stream_weights(Stream& stream, StreamPlan& plan) {
  int units = 0;
  plan.slot_inputs = 0;
  plan.most_entries = plan.experts > 0 ? plan.most_tiles(true) : 0;
  for (int p = 0; p < plan.num_phases; ++p) {
    const StreamPhase& phase = plan.phases[p];
    const int bytes =
        8 * plan.token_tiles *
        (phase.x_rows != nullptr ? kCopiedStride : kMultipliers / phase.row_warps * kInputStride);
    plan.slot_inputs =
        std::max(plan.slot_inputs, ceil_divide(bytes, kBoxAlignment) * kBoxAlignment);
    units = std::max(units, plan.most_tiles(phase.routed) * phase.units());
  }
  plan.slots = kMostSlots;
  const size_t most_bytes = static_cast<size_t>(most_block_bytes(stream));
  while (plan.slots > 2 && block_bytes(plan, plan.slots) > most_bytes) --plan.slots;
  const int blocks = std::min(units, stream.cuda().num_multiprocessors());
  if (plan.token_tiles == 1) {
    launch_stream<1>(stream, plan, blocks);
  } else if (plan.token_tiles == 2) {
    launch_stream<2>(stream, plan, blocks);
  } else {
    launch_stream<4>(stream, plan, blocks);
  }
}

void stream_products(Stream& stream, const Products& products) {
  StreamPlan plan{};
  plan.num_phases = 1;
  StreamPhase& phase = plan.phases[0];
  plan.token_tiles = stream_token_tiles(products.tokens, products.experts);
  phase = stream_phase(
      plan, products,
      stream_row_warps(products.rows * std::max(products.experts, 1), products.cols), false);
  phase.y = products.y;
  phase.out_stride = products.y_stride;
  const bool routed = products.experts > 0;
  (routed ? plan.pairs : plan.tokens) = products.tokens;
  plan.experts = products.experts;
  plan.offsets = products.offsets;
  stream_weights(stream, plan);
}

}  // namespace braid::cuda

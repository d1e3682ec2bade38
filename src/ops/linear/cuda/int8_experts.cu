// Compiled for sm_90a alone.

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/async_copy.cuh"
#include "ops/linear/cuda/int8_experts.h"
#include "ops/linear/cuda/int8_items.cuh"
#include "ops/linear/cuda/ring.cuh"
#include "ops/linear/cuda/tiles.cuh"
#include "ops/linear/cuda/warpgroup.cuh"

namespace braid::cuda {
namespace {

// A block takes items of 256 rows, or 128 gate rows and the up rows that go with them, for up to
// kTokens tokens of an expert: four groups of four warps multiply 64 rows each. Steps of the
// columns go through a ring; one warp copies weights, others copy inputs.
constexpr int kTokens = 64, kPanels = 8, kItemRows = 32 * kPanels;
constexpr int kWeightBytes = kPanels * kPanelStepBytes, kInputBytes = kTokens * kStepCols;
constexpr int kStageBytes = kWeightBytes + kInputBytes;
constexpr int kStages = 5;
constexpr int kMultiplierWarps = 2 * kPanels;
constexpr int kCopyThreads = 2 * kWarp;
constexpr int kThreads = kMultiplierWarps * kWarp + kWarp + kCopyThreads;
// Of what copying warps hand on; they are ahead by kStages at most.
constexpr int kItemsAhead = 2 * kStages;

struct Shared {
  uint64_t full[kStages], empty[kStages];
  Item items[kItemsAhead];  // count 0: there are no more
  float x_scales[kItemsAhead][kTokens];
  int first_tiles[kMostExperts];
};
constexpr int kSharedBytes = kStages * kStageBytes + static_cast<int>(sizeof(Shared));
static_assert(kSharedBytes <= 226 << 10);

template <bool kGated>
constexpr int kBlockRows = kGated ? kItemRows / 2 : kItemRows;

// Weights of all items, by one warp, of which each of the first lanes copies a panel.
template <bool kGated>
__device__ void bring_weights(const Int8Products& p, const Items<kThreads>& items, Shared& shared,
                              uint32_t stages) {
  const int lane = threadIdx.x % kWarp, units = p.cols / 32;
  Ring ring(kStages);
  int next = 0;
  const auto pass_on = [&](const Item& item) {
    if (lane == 0) shared.items[next] = item;
    next = (next + 1) % kItemsAhead;
  };
#pragma unroll 1
  for (int i = blockIdx.x; i < items.count(); i += gridDim.x) {
    const Item item = items.at(i);
    pass_on(item);
    const uint8_t* panel = panel_of<kGated, kPanels>(p, item, lane % kPanels);
#pragma unroll 1
    for (int unit = 0; unit < units; unit += kStepUnits, ring.advance()) {
      wait_barrier(shared_address(&shared.empty[ring.slot()]), ring.parity() ^ 1);
      const uint32_t full = shared_address(&shared.full[ring.slot()]);
      const int bytes = min(kStepUnits, units - unit) * kUnitBytes;
      if (lane == 0) arrive_and_expect(full, kPanels * bytes);
      __syncwarp();
      if (lane < kPanels) {
        const uint32_t to = stages + ring.slot() * kStageBytes + lane * kPanelStepBytes;
        const uint8_t* const from = panel + unit * kUnitBytes;
        stream_bytes(to, from, bytes, full);
      }
    }
  }
  // A step without copies, for the end.
  wait_barrier(shared_address(&shared.empty[ring.slot()]), ring.parity() ^ 1);
  pass_on({});
  __syncwarp();
  if (lane == 0) arrive(shared_address(&shared.full[ring.slot()]));
}

// Inputs of all items and, with an item's first step, their scales.
__device__ void bring_inputs(const Int8Products& p, const Items<kThreads>& items, Shared& shared,
                             uint32_t stages) {
  constexpr int kRowsAtOnce = kCopyThreads / 8, kEach = kTokens / kRowsAtOnce;
  static_assert(kCopyThreads == kTokens);
  const int thread = threadIdx.x % kCopyThreads, piece = thread % 8;
  const uint32_t x_scales = shared_address(shared.x_scales) + thread * 4;
  Ring ring(kStages);
  int next = 0;
#pragma unroll 1
  for (int i = blockIdx.x; i < items.count(); i += gridDim.x) {
    const Item item = items.at(i);
    uint32_t from[kEach];  // in 32 bytes
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const int row = input_row(p, item, thread / 8 + r * kRowsAtOnce);
      from[r] = static_cast<uint32_t>(row) * static_cast<uint32_t>(p.codes_stride / 32);
    }
    const float* const scale = p.scales + input_row(p, item, thread);
#pragma unroll 1
    for (int col = 0; col < p.cols; col += kStepCols, ring.advance()) {
      wait_barrier(shared_address(&shared.empty[ring.slot()]), ring.parity() ^ 1);
      if (col == 0) copy4_async(x_scales + next * kTokens * 4, scale, true);
      const uint32_t inputs = stages + ring.slot() * kStageBytes + kWeightBytes;
      // Zeros beyond the columns, where the stage has what was there before as weights.
      const bool wanted = col + piece * 16 < p.cols;
      const int8_t* const x = p.codes + (wanted ? col + piece * 16 : 0);
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
        const int token = thread / 8 + r * kRowsAtOnce;
        if (token < item.count) {
          copy16_async(inputs + place(token, piece), x + int64_t{from[r]} * 32, wanted);
        }
      }
      arrive_after_copies(shared_address(&shared.full[ring.slot()]));
    }
    next = (next + 1) % kItemsAhead;
  }
  wait_barrier(shared_address(&shared.empty[ring.slot()]), ring.parity() ^ 1);
  arrive(shared_address(&shared.full[ring.slot()]));
  wait_for_copies<0>();
}

template <Output kOutput>
__device__ void multiply(const Int8Products& p, Shared& shared, const unsigned char* memory) {
  constexpr bool kGated = kOutput == Output::kGated;
  Ring ring(kStages);
#pragma unroll 1
  for (int next = 0;; next = (next + 1) % kItemsAhead) {
    wait_barrier(shared_address(&shared.full[ring.slot()]), ring.parity());
    const Item item = shared.items[next];
    if (item.count == 0) return;
    const Ending ending = ending_of<kGated, kPanels>(p, item);
    int32_t sums[kTokens / 2] = {};
#pragma unroll 1
    for (int col = 0; col < p.cols; col += kStepCols, ring.advance()) {
      wait_barrier(shared_address(&shared.full[ring.slot()]), ring.parity());
      publish_to_tensor_cores();  // inputs, which ordinary copies have brought
      const unsigned char* const stage = memory + ring.slot() * kStageBytes;
      Codes<kGated, kPanels> codes;
      codes.load(stage);
      const uint64_t x = tile_descriptor(shared_address(stage) + kWeightBytes);
      begin_products();
#pragma unroll
      for (int unit = 0; unit < kStepUnits; ++unit) {
        Int8Product<kTokens>::add(sums, codes.a[unit], x + 2 * unit, col + unit);
      }
      commit_products();
      wait_for_products<0>();
      arrive_of_warp(shared_address(&shared.empty[ring.slot()]));
    }
    store_sums<kTokens, kItemRows, kOutput>(p, sums, shared.x_scales[next], ending);
  }
}

template <Output kOutput>
__global__ void __launch_bounds__(kThreads, 1)
    int8_experts(const __grid_constant__ Int8Products p) {
  constexpr bool kGated = kOutput == Output::kGated;
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory + kStages * kStageBytes);
  const uint32_t stages = shared_address(memory);
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kStages; ++slot) {
      init_barrier(shared_address(&shared.full[slot]), kCopyThreads + 1);
      init_barrier(shared_address(&shared.empty[slot]), kMultiplierWarps * kWarpArrivals);
    }
    publish_barriers();
  }
  wait_for_inputs();
  const Items<kThreads> items(p, kTokens, ceil_divide(p.rows, kBlockRows<kGated>),
                              shared.first_tiles);
  const int warp = threadIdx.x / kWarp;
  if (warp < kMultiplierWarps) {
    multiply<kOutput>(p, shared, memory);
  } else if (warp == kMultiplierWarps) {
    bring_weights<kGated>(p, items, shared, stages);
  } else {
    bring_inputs(p, items, shared, stages);
  }
}

template <Output kOutput>
void launch_experts(Stream& stream, const Int8Products& p) {
  const auto kernel = int8_experts<kOutput>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  BRAID_CUDA_CHECK(allowed);
  const int64_t items = most_items(p, kTokens, kBlockRows<kOutput == Output::kGated>);
  const int64_t blocks = std::min<int64_t>(items, stream.cuda().num_multiprocessors());
  launch(stream, kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), kSharedBytes, p);
}

}  // namespace

bool int8_experts_can(Stream& stream, const Int8Products& p) {
  // So many items that they go round, and no more than a quarter of the rows beyond the matrix.
  const int block_rows = p.up != nullptr ? kBlockRows<true> : kBlockRows<false>;
  const int row_blocks = ceil_divide(p.rows, block_rows);
  const int64_t items = int64_t{std::min(p.experts, p.tokens)} * row_blocks;
  return p.experts > 0 && p.tokens <= int64_t{kTokens} * p.experts &&
         items >= 2 * stream.cuda().num_multiprocessors() &&
         4 * row_blocks * block_rows <= 5 * p.rows &&
         reinterpret_cast<uintptr_t>(p.weights) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(p.up) % 16 == 0 && p.panel_bytes % 16 == 0 &&
         p.matrix_bytes % 16 == 0;
}

void int8_experts_products(Stream& stream, const Int8Products& p) {
  if (p.up != nullptr) return launch_experts<Output::kGated>(stream, p);
  if (p.rounded != nullptr) return launch_experts<Output::kRounded>(stream, p);
  launch_experts<Output::kPlain>(stream, p);
}

}  // namespace braid::cuda

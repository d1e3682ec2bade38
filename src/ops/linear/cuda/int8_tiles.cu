// Compiled for sm_90a alone.

#include <algorithm>

#include "base/check.h"
#include "ops/linear/cuda/int8_experts.h"
#include "ops/linear/cuda/int8_items.cuh"
#include "ops/linear/cuda/int8_tiles.h"
#include "ops/linear/cuda/tiles.cuh"
#include "ops/linear/cuda/warpgroup.cuh"

namespace braid::cuda {
namespace {

// A block takes items of 128 rows, or 64 gate rows and the up rows that go with them, for up to
// kTokens tokens of an expert: two groups of four warps with 64 rows each. Blocks stay and go
// through several items; what they bring runs ahead of what they multiply, into the next item, too.
constexpr int kPanels = 4, kItemRows = 128;
constexpr int kWeightBytes = kPanels * kPanelStepBytes;

// Tiles go through a ring. With one block on a multiprocessor, the products of two steps overlap.
template <int kTokens_>
struct Shape {
  static constexpr int kTokens = kTokens_;
  static constexpr bool kOverlaps = kTokens > 128;
  static constexpr int kInputBytes = kTokens * kStepCols;
  static constexpr int kStageBytes = kWeightBytes + kInputBytes;
  static constexpr int kStages = kTokens == 128 ? 3 : 4;
  static constexpr int kAhead = kStages - (kOverlaps ? 2 : 1);
  static constexpr int kBytes = kStages * kStageBytes + kTokens * 4;
  static constexpr int kBlocks = kOverlaps ? 1 : 2;
};

template <int kTokens, Output kOutput>
__global__ void __launch_bounds__(kTileThreads, Shape<kTokens>::kBlocks)
    int8_tiles(const __grid_constant__ Int8Products p) {
  using S = Shape<kTokens>;
  static_assert(kTileThreads == 256);
  constexpr bool kGated = kOutput == Output::kGated;
  // Whether there are registers for the ending of an item while its sums are computed.
  constexpr bool kEarly = kTokens == 64;
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ int first_tiles[kMostExperts];
  float* const x_scales = reinterpret_cast<float*>(memory + S::kStages * S::kStageBytes);
  constexpr int kBlockRows = kGated ? kItemRows / 2 : kItemRows;
  wait_for_inputs();
  const Items<kTileThreads> items(p, kTokens, (p.rows + kBlockRows - 1) / kBlockRows, first_tiles);
  const int units = p.cols / 32;
  const int steps = (units + kStepUnits - 1) / kStepUnits;
  // What is brought: a thread copies 16 bytes of each panel, and of every 32nd token.
  constexpr int kThreadTokens = kTokens / 32;
  const int piece = threadIdx.x % 8;
  int fetch_item = blockIdx.x, fetch_step = 0, fetch_count = 0, fetch_stage = 0;
  const uint8_t* weights[kPanels];
  uint32_t inputs[kThreadTokens];  // in 32 bytes
  int next_rows[kThreadTokens];    // of the item behind, on their way
  const auto find_rows = [&](const Item& item) {
#pragma unroll
    for (int i = 0; i < kThreadTokens; ++i) {
      next_rows[i] = input_row(p, item, threadIdx.x / 8 + 32 * i);
    }
  };
  const auto begin_fetching = [&] {
    const Item item = items.at(fetch_item);
    fetch_count = item.count;
#pragma unroll
    for (int i = 0; i < kPanels; ++i) {
      weights[i] = panel_of<kGated, kPanels>(p, item, i) + threadIdx.x * 16;
    }
#pragma unroll
    for (int i = 0; i < kThreadTokens; ++i) {
      inputs[i] = static_cast<uint32_t>(next_rows[i] * (p.codes_stride / 32));
    }
    const int next = fetch_item + static_cast<int>(gridDim.x);
    if (next < items.count()) find_rows(items.at(next));
  };
  const auto fetch = [&] {
    if (fetch_item < items.count()) {
      const uint32_t to = shared_address(memory + fetch_stage * S::kStageBytes);
      const bool has_unit = fetch_step * kStepUnits + static_cast<int>(threadIdx.x) / 64 < units;
#pragma unroll
      for (int i = 0; i < kPanels; ++i) {
        copy_async(to + (i * kTileThreads + threadIdx.x) * 16,
                   weights[i] + (has_unit ? fetch_step * kStepUnits * kUnitBytes : 0), has_unit);
      }
      const int col = fetch_step * kStepCols + piece * 16;
#pragma unroll
      for (int i = 0; i < kThreadTokens; ++i) {
        const int token = threadIdx.x / 8 + 32 * i;
        const bool wanted = token < fetch_count && col < p.cols;
        copy_async(to + kWeightBytes + place(token, piece),
                   p.codes + (wanted ? int64_t{inputs[i]} * 32 + col : 0), wanted);
      }
      if (++fetch_stage == S::kStages) fetch_stage = 0;
      if (++fetch_step == steps) {
        fetch_step = 0;
        fetch_item += gridDim.x;
        if (fetch_item < items.count()) begin_fetching();
      }
    }
    commit_copies();
  };
  if (fetch_item < items.count()) {
    find_rows(items.at(fetch_item));
    begin_fetching();
  }
#pragma unroll 1
  for (int i = 0; i < S::kAhead; ++i) fetch();

  int32_t sums[kTokens / 2] = {};
  using ItemCodes = Codes<kGated, kPanels>;
  ItemCodes codes[2];
  int stage = 0;
  const auto multiply = [&](int step, ItemCodes& of_step) {
    wait_for_copies<S::kAhead - 1>();
    publish_to_tensor_cores();
    __syncthreads();  // and all are through with the stage that is filled next
    fetch();
    const unsigned char* at = memory + stage * S::kStageBytes;
    if (++stage == S::kStages) stage = 0;
    of_step.load(at);
    const uint64_t x = tile_descriptor(shared_address(at) + kWeightBytes);
    begin_products();
#pragma unroll
    for (int unit = 0; unit < kStepUnits; ++unit) {
      Int8Product<kTokens>::add(sums, of_step.a[unit], x + 2 * unit, step + unit);
    }
    commit_products();
    wait_for_products<S::kOverlaps ? 1 : 0>();
  };
  float x_scale;  // of token threadIdx.x
  const auto find_ending = [&](int index) {
    const Item item = items.at(index);
    const int token = static_cast<int>(threadIdx.x);
    x_scale = token < kTokens ? p.scales[input_row(p, item, token)] : 0;
    return ending_of<kGated, kPanels>(p, item);
  };
#pragma unroll 1
  for (int index = blockIdx.x; index < items.count(); index += gridDim.x) {
    Ending ending;
    if constexpr (kEarly) ending = find_ending(index);
    if constexpr (S::kOverlaps) {
      // In turn, and twice the same only when nothing is on its way.
      int step = 0;
#pragma unroll 1
      for (; step + 2 <= steps; step += 2) {
        multiply(step, codes[0]);
        multiply(step + 1, codes[1]);
      }
      if (step < steps) multiply(step, codes[0]);
    } else {
#pragma unroll 1
      for (int step = 0; step < steps; ++step) multiply(step, codes[0]);
    }
    if constexpr (!kEarly) ending = find_ending(index);
    if (threadIdx.x < kTokens) x_scales[threadIdx.x] = x_scale;
    wait_for_products<0>();
    __syncthreads();
    store_sums<kTokens, kItemRows, kOutput>(p, sums, x_scales, ending);
  }
}

template <int kTokens, Output kOutput>
void launch_tiles(Stream& stream, const Int8Products& p) {
  constexpr int kBytes = Shape<kTokens>::kBytes;
  const auto kernel = int8_tiles<kTokens, kOutput>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  BRAID_CUDA_CHECK(allowed);
  const int64_t most =
      most_items(p, kTokens, kOutput == Output::kGated ? kItemRows / 2 : kItemRows);
  const int64_t at_once = Shape<kTokens>::kBlocks * stream.cuda().num_multiprocessors();
  launch(stream, kernel, dim3(static_cast<unsigned>(std::min(most, at_once))), dim3(kTileThreads),
         kBytes, p);
}

}  // namespace

bool has_int8_products(Stream& stream) {
  static_cast<void>(stream);  // devices of one machine are taken to be alike
  static const bool found = [] {
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, int8_tiles<64, Output::kPlain>) == cudaSuccess)
      return true;
    cudaGetLastError();  // clears it
    return false;
  }();
  return found;
}

void int8_tiles_products(Stream& stream, const Int8Products& p, int tile_tokens) {
  BRAID_CHECK(p.experts <= kMostExperts, "{} experts", p.experts);
  BRAID_CHECK(p.rounded == nullptr || (p.rows % 16 == 0 && p.y_stride % 4 == 0 &&
                                       reinterpret_cast<uintptr_t>(p.rounded) % 8 == 0),
              "{} rounded rows", p.rows);
  if (tile_tokens == 0 && int8_experts_can(stream, p)) return int8_experts_products(stream, p);
  if (tile_tokens == 0) {
    const int most = p.experts > 0 ? p.tokens / p.experts : p.tokens;
    tile_tokens = most <= 64 ? 64 : most <= 128 ? 128 : 256;
  }
  const auto run = [&](auto output) {
    constexpr Output kOutput = decltype(output)::value;
    if (tile_tokens == 64) return launch_tiles<64, kOutput>(stream, p);
    if constexpr (kOutput == Output::kPlain) {
      if (tile_tokens == 256 && p.experts == 0) return launch_tiles<256, kOutput>(stream, p);
    }
    launch_tiles<128, kOutput>(stream, p);
  };
  if (p.up != nullptr) {
    run(std::integral_constant<Output, Output::kGated>{});
  } else if (p.rounded != nullptr) {
    run(std::integral_constant<Output, Output::kRounded>{});
  } else {
    run(std::integral_constant<Output, Output::kPlain>{});
  }
}

}  // namespace braid::cuda

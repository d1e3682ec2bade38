#pragma once

// The host's side of weight_stream.cuh: how much shared memory a plan takes, and its launch.

#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "base/error.h"
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/weight_stream.cuh"

namespace braid::cuda {

// The most units of the last phase that a block may get, where they are dealt out by what it had
// before; 0: they are not. Of blocks whose steps before differ by `spread`, none begins its last
// unit later than another one its next.
inline int most_dealt_units(const StreamPlan& plan, int blocks) {
  const StreamPhase& last = plan.phases[plan.num_phases - 1];
  if (plan.num_phases < 2 || !last.routed || blocks == 0 || blocks > kMostDealtTo) {
    return 0;
  }
  int spread = 0;
  for (int p = 0; p < plan.num_phases - 1; ++p) spread += plan.phases[p].steps + 1;
  return plan.most_tiles(true) * last.units() / blocks + spread / (last.steps + 1) + 3;
}

// Shared memory of a block: what leaves room for the small kernels that come next.
inline constexpr int kStreamBlockBytes = 200 << 10;

template <typename Source>
size_t stream_block_bytes(const StreamPlan& plan, int slots) {
  return kBoxAlignment + ring_bytes<Source>(slots) + static_cast<size_t>(slots) * plan.slot_inputs +
         (plan.few.logits != nullptr ? sizeof(FewRoom) : 0) +
         (kStreamBuffers * plan.partial_size + plan.scales_size) * sizeof(float) +
         plan.most_entries * sizeof(TokenTile) +
         (plan.listed_pairs + (plan.most_dealt > 0 ? plan.most_dealt + kMostDealtTo : 0)) *
             sizeof(int32_t);
}

template <typename Source, int kTokenTiles>
void launch_stream(Stream& stream, StreamPlan& plan) {
  using Block = StreamBlock<Source, kTokenTiles>;
  int available = 0;
  BRAID_CUDA_CHECK(cudaDeviceGetAttribute(&available, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                          stream.cuda().device()));
  const auto most_bytes =
      static_cast<size_t>(std::min(kStreamBlockBytes, available - 1024));  // barriers take some
  int units = 0;
  plan.slot_inputs = 0;
  plan.most_entries = plan.experts > 0 ? plan.most_tiles(true) : 0;
  plan.partial_tokens = plan.experts > 0 ? Block::kTokens : std::min(Block::kTokens, plan.tokens);
  plan.partial_size = plan.scales_size = 0;
  for (int p = 0; p < plan.num_phases; ++p) {
    StreamPhase& phase = plan.phases[p];
    phase.num_units = phase.units();
    plan.partial_size =
        std::max(plan.partial_size, partial_floats<Source>(phase.row_warps, plan.partial_tokens));
    plan.scales_size = std::max(plan.scales_size, scale_floats<Source>(phase.row_warps));
    BRAID_CHECK(Source::kTailBytes == 0 || phase.row_warps <= Source::kTailWarps, "{} row warps",
                phase.row_warps);
    plan.slot_inputs = std::max(plan.slot_inputs, Source::input_bytes(phase, Block::kTokens));
    units = std::max(units, plan.most_tiles(phase.routed) * phase.units());
  }
  // Sums of one token are kernels of one block, which begin beside these: with what they can do
  // ahead of them where they have a multiprocessor of their own.
  const int spare = plan.tokens == 1 ? 1 : 0;
  const int blocks = std::min(units, stream.cuda().num_multiprocessors() - spare);
  plan.listed_pairs = plan.experts > 0 && plan.pairs <= kMostListedPairs ? plan.pairs : 0;
  plan.most_dealt = Source::kDeals ? most_dealt_units(plan, blocks) : 0;
  // No more of them than a block fills once, so that others find room beside a small matrix.
  int needed = 0;
  for (int p = 0; p < plan.num_phases; ++p) {
    const StreamPhase& phase = plan.phases[p];
    needed += ceil_divide(plan.most_tiles(phase.routed) * phase.units(), std::max(blocks, 1)) *
              phase.steps;
  }
  constexpr int kSets = Source::kSets;
  plan.slots = std::min(ceil_divide(std::max(needed, 1), kSets), kMostSlots / kSets) * kSets;
  while (plan.slots > kSets && stream_block_bytes<Source>(plan, plan.slots) > most_bytes) {
    plan.slots -= kSets;
  }

  auto* kernel = stream_kernel<Source, kTokenTiles>;
  const size_t bytes = stream_block_bytes<Source>(plan, plan.slots);
  if (bytes > most_bytes) {
    BRAID_CHECK(plan.most_entries > 0, "{} bytes of shared memory", bytes);
    throw Error(
        "a step of {} pairs of a token and an expert is too large for --deterministic on this "
        "device: use a smaller --batch-tokens",
        plan.pairs);
  }
  static size_t allowed = 0;
  if (bytes > allowed) {
    BRAID_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(bytes)));
    allowed = bytes;
  }
  launch(stream, kernel, static_cast<unsigned>(blocks), Block::kThreads, bytes, plan);
}

// The kernels for weights in tiles, with two sizes of tiles of tokens.
template <FormatId kFormat>
void stream_tiles(Stream& stream, StreamPlan& plan);

}  // namespace braid::cuda

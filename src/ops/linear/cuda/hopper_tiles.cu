// Compiled for sm_90a alone.

#include "ops/linear/cuda/hopper_tiles.h"
#include "ops/linear/cuda/streamed_tile.cuh"
#include "ops/linear/cuda/tiles.cuh"
#include "ops/linear/cuda/touched_expert.cuh"
#include "ops/linear/cuda/warpgroup.cuh"

namespace braid::cuda {
namespace {

// A block computes kBlocks · 128 rows for up to kTokens tokens of one expert: two groups of four
// warps with kBlocks · 64 rows each. Tiles go through a ring; one is filled while the tensor cores
// are at the two behind it.
constexpr int kTokens = 160, kStages = 4, kAhead = 2;
constexpr int kInputBytes = kTokens * kTileColumns * 2;
constexpr int weight_bytes(int blocks) { return blocks * 128 * kTileColumns * 2; }
// Of the stages; the tile's own memory lies behind them.
constexpr int shared_bytes(int blocks) { return kStages * (weight_bytes(blocks) + kInputBytes); }

template <typename WeightTile, int kBlocks, int kTileTokens>
__device__ void tile_product(const Products& p, const ExpertTokens& tokens, unsigned char* memory) {
  constexpr int kWeightBytes = kBlocks * 128 * kTileColumns * 2;
  constexpr int kRows = kBlocks * 128;
  const int count = tokens.end - tokens.begin;
  const int first_row = blockIdx.x * kRows;
  WeightTile weights(p, p.weights + tokens.expert * p.matrix_bytes + first_row * p.row_bytes,
                     min(kRows, p.rows - first_row),
                     memory + kStages * (kWeightBytes + kInputBytes));
  weights.begin();
  const uint16_t* const inputs = p.packed + tokens.begin * p.packed_stride;
  const int steps = (p.cols + kTileColumns - 1) / kTileColumns;
  const auto stage = [&](int step) {
    return memory + step % kStages * (kWeightBytes + kInputBytes);
  };
  const auto fetch = [&](int step) {
    if (step < steps) {
      const uint32_t shared = shared_address(stage(step));
      weights.fetch(step, shared);
      fetch_inputs<kTileTokens>(inputs, p.packed_stride, count, step, shared + kWeightBytes);
    }
    commit_copies();
  };

  const int group = threadIdx.x / 128;
  float sums[kBlocks][kTileTokens / 2] = {};
  // No barrier stands between the first steps.
  if constexpr (WeightTile::kMemoryBytes > 0) {
    static_assert(WeightTile::kSlots >= WeightTile::kAhead + kAhead);
  }
  for (int step = 0; step < kAhead; ++step) {
    fetch(step);
    if (step < steps) weights.store(stage(step));
  }
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<kAhead - 1>();
    publish_to_tensor_cores();
    __syncthreads();  // and all are through with the stage that is filled next
    fetch(step + kAhead);
    const uint32_t shared = shared_address(stage(step));
    const uint64_t x = tile_descriptor(shared + kWeightBytes);
    begin_products();
#pragma unroll
    for (int k = 0; k < kTileColumns / 16; ++k) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const uint64_t w = tile_descriptor(shared + (group * kBlocks + block) * 64 * 128);
        WarpgroupProduct<kTileTokens>::add(sums[block], w + 2 * k, x + 2 * k);
      }
    }
    commit_products();
    if (step + kAhead < steps) weights.store(stage(step + kAhead));
    wait_for_products<1>();
  }
  wait_for_products<0>();

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % 4;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < kTileTokens / 2; ++i) {
      const int row =
          first_row + (group * kBlocks + block) * 64 + warp * 16 + i % 4 / 2 * 8 + lane / 4;
      const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (row < p.rows && token < count) {
        p.y[(tokens.begin + token) * p.y_stride + row] =
            sums[block][i] * weights.row_scale(row - first_row);
      }
    }
  }
}

template <typename WeightTile, int kBlocks>
__global__ void __launch_bounds__(kTileThreads, 1)
    hopper_tiles(const __grid_constant__ Products p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  wait_for_inputs();
  const ExpertTokens tokens = find_tile(p.offsets, p.experts, blockIdx.y, kTokens);
  if (tokens.expert < 0) return;
  const int count = tokens.end - tokens.begin;
  if (count <= 64) {
    tile_product<WeightTile, kBlocks, 64>(p, tokens, memory);
  } else if (count <= 128) {
    tile_product<WeightTile, kBlocks, 128>(p, tokens, memory);
  } else {
    tile_product<WeightTile, kBlocks, kTokens>(p, tokens, memory);
  }
}

template <typename WeightTile, int kBlocks>
void launch_tiles(Stream& stream, const Products& products) {
  constexpr int kBytes = shared_bytes(kBlocks) + WeightTile::kMemoryBytes;
  const auto kernel = hopper_tiles<WeightTile, kBlocks>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  BRAID_CUDA_CHECK(allowed);
  // Tiles that experts can have at most: full ones, and one that is not for each.
  const int tiles = products.tokens / kTokens + std::min(products.experts, products.tokens);
  launch(stream, kernel, dim3(ceil_divide(products.rows, kBlocks * 128), tiles), dim3(kTileThreads),
         kBytes, products);
}

bool runs_here() {
  cudaFuncAttributes attributes{};
  const bool found =
      cudaFuncGetAttributes(&attributes, hopper_tiles<CopiedTile<256>, 2>) == cudaSuccess;
  if (!found) cudaGetLastError();  // clears it
  return found;
}

}  // namespace

bool hopper_tiles_products(Stream& stream, const Products& products) {
  static const bool can = runs_here();
  if (!can) return false;
  bool done = true;
  with_rows(products.format, products.tiles, [&](auto row) {
    using Row = typename decltype(row)::Type;
    constexpr FormatId kId = Row::kId;
    if constexpr (kId == FormatId::kBF16) {
      launch_tiles<CopiedTile<256>, 2>(stream, products);
    } else if constexpr (!Row::kTiles) {
      done = false;
    } else if constexpr (kId == FormatId::kQ4_0 || kId == FormatId::kQ8_0 ||
                         kId == FormatId::kW4G128 || kId == FormatId::kW4G64 ||
                         kId == FormatId::kW8C) {
      launch_tiles<StreamedTile<kId>, 1>(stream, products);
    } else {
      done = false;
    }
  });
  return done;
}

}  // namespace braid::cuda

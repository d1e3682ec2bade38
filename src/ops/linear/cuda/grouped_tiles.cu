#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/hopper_tiles.h"
#include "ops/linear/cuda/tiles.cuh"
#include "ops/linear/cuda/touched_expert.cuh"

namespace braid::cuda {
namespace {

// A block computes kRows rows for up to kTokens tokens of one expert; tiles go through a ring of
// kStages.
constexpr int kRows = 128, kTokens = 128, kStages = 3;
constexpr int kTileBytes = kRows * kTileColumns * 2;
constexpr int kSharedBytes = kStages * 2 * kTileBytes;
static_assert(kRows == kTokens);

template <typename WeightTile>
__global__ void __launch_bounds__(kTileThreads, 2)
    grouped_tiles(const __grid_constant__ Products p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  wait_for_inputs();
  const ExpertTokens tokens = find_tile(p.offsets, p.experts, blockIdx.y, kTokens);
  if (tokens.expert < 0) return;
  const int count = tokens.end - tokens.begin;
  const int first_row = blockIdx.x * kRows;
  WeightTile weights(p, p.weights + tokens.expert * p.matrix_bytes + first_row * p.row_bytes,
                     min(kRows, p.rows - first_row), nullptr);
  static_assert(WeightTile::kMemoryBytes == 0);
  const uint16_t* const inputs = p.packed + tokens.begin * p.packed_stride;
  const int steps = (p.cols + kTileColumns - 1) / kTileColumns;
  const auto weight_tile = [&](int step) { return memory + step % kStages * 2 * kTileBytes; };
  const auto fetch = [&](int step) {
    if (step < steps) {
      const uint32_t shared = shared_address(weight_tile(step));
      weights.fetch(step, shared);
      fetch_inputs<kTokens>(inputs, p.packed_stride, count, step, shared + kTileBytes);
    }
    commit_copies();
  };

  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int warp_row = warp % 4 * 32, warp_token = warp / 4 * 64;
  float sums[2][8][4] = {};
  for (int step = 0; step < kStages - 1; ++step) {
    fetch(step);
    if (step < steps) weights.store(weight_tile(step));
  }
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<kStages - 2>();
    __syncthreads();
    const int ahead = step + kStages - 1;
    fetch(ahead);
    if (warp_token < count) {
      const uint32_t w = shared_address(weight_tile(step)), x = w + kTileBytes;
#pragma unroll
      for (int k = 0; k < kTileColumns / 16; ++k) {
        uint32_t a[2][4];
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          load_matrices(a[tile], w + place(warp_row + tile * 16 + lane % 16, 2 * k + lane / 16));
        }
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          uint32_t b[4];  // two groups of eight tokens
          load_matrices(b, x + place(warp_token + pair * 16 + lane / 16 * 8 + lane % 8,
                                     2 * k + lane / 8 % 2));
#pragma unroll
          for (int tile = 0; tile < 2; ++tile) {
            multiply_add(sums[tile][2 * pair], a[tile][0], a[tile][1], a[tile][2], a[tile][3], b[0],
                         b[1]);
            multiply_add(sums[tile][2 * pair + 1], a[tile][0], a[tile][1], a[tile][2], a[tile][3],
                         b[2], b[3]);
          }
        }
      }
    }
    if (ahead < steps) weights.store(weight_tile(ahead));
  }

#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int t = 0; t < 8; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + warp_row + tile * 16 + i / 2 * 8 + lane / 4;
        const int token = warp_token + t * 8 + lane % 4 * 2 + i % 2;
        if (row < p.rows && token < count) {
          p.y[(tokens.begin + token) * p.y_stride + row] = sums[tile][t][i];
        }
      }
    }
  }
}

template <typename WeightTile>
void launch_tiles(Stream& stream, const Products& products) {
  static const bool allowed = [] {
    BRAID_CUDA_CHECK(cudaFuncSetAttribute(
        grouped_tiles<WeightTile>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
    return true;
  }();
  static_cast<void>(allowed);
  // Tiles that experts can have at most: full ones, and one that is not for each.
  const int tiles = products.tokens / kTokens + std::min(products.experts, products.tokens);
  launch(stream, grouped_tiles<WeightTile>, dim3(ceil_divide(products.rows, kRows), tiles),
         dim3(kTileThreads), kSharedBytes, products);
}

}  // namespace

void grouped_tiles_products(Stream& stream, const Products& products) {
  if (hopper_tiles_products(stream, products)) return;
  with_rows(products.format, products.tiles, [&](auto row) {
    using Row = typename decltype(row)::Type;
    if constexpr (Row::kId == FormatId::kBF16) {
      launch_tiles<CopiedTile<kRows>>(stream, products);
    } else if constexpr (Row::kId != FormatId::kF32) {
      launch_tiles<ExpandedTile<Row, kRows>>(stream, products);
    }
  });
}

}  // namespace braid::cuda

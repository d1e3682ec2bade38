#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/tensor_core.cuh"
#include "ops/linear/cuda/few_rows.h"

namespace braid::cuda {
namespace {

constexpr int kBlockRows = 8;
constexpr int kWarps = 16;
constexpr int kThreads = kWarps * kWarp;
constexpr int kTileTokens = 16;
constexpr int kChunkColumns = 32;
constexpr int kMostColumns = 8 * kWarps * kChunkColumns;
// Beyond that the streamed products are as fast.
constexpr int64_t kMostElements = int64_t{2} << 20;

// A block computes eight rows of all tokens; its warps take chunks of 32 columns in turn. Tokens
// are the rows of the tensor cores' first factor. A lane's eight neighbouring columns of a chunk
// stand for those that the instruction would have it take, in both factors.
template <int kChunks, int kTiles>
__global__ void __launch_bounds__(kThreads)
    few_rows_kernel(const __grid_constant__ Products products, bool ahead) {
  if (ahead) let_next_begin();
  __shared__ float partial[kWarps][kTiles * kTileTokens * kBlockRows];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int group = lane / 4;
  const int first_row = blockIdx.x * kBlockRows;
  constexpr int kStride = kWarps * kChunkColumns;
  const int first_column = warp * kChunkColumns + lane % 4 * 8;
  // At offsets that are constants: little stands between the inputs and the products.
  const auto load = [&](const uint16_t* from, int chunk, bool there) {
    return there && first_column + chunk * kStride < products.cols
               ? *reinterpret_cast<const uint4*>(from + chunk * kStride)
               : uint4{0, 0, 0, 0};
  };
  uint4 weights[kChunks];
  {
    const auto* from =
        reinterpret_cast<const uint16_t*>(
            products.weights + min(first_row + group, products.rows - 1) * products.row_bytes) +
        first_column;
#pragma unroll
    for (int j = 0; j < kChunks; ++j) weights[j] = load(from, j, true);
  }
  wait_for_inputs();
  float sums[kTiles][4] = {};
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    uint4 x[2][kChunks];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = tile * kTileTokens + half * 8 + group;
      const uint16_t* from = products.packed + token * products.packed_stride + first_column;
#pragma unroll
      for (int j = 0; j < kChunks; ++j) x[half][j] = load(from, j, token < products.tokens);
    }
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      const uint4 low = x[0][j], high = x[1][j], w = weights[j];
      multiply_add(sums[tile], {low.x, high.x, low.y, high.y}, w.x, w.y);
      multiply_add(sums[tile], {low.z, high.z, low.w, high.w}, w.z, w.w);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = tile * kTileTokens + half * 8 + group;
      *reinterpret_cast<float2*>(&partial[warp][token * kBlockRows + lane % 4 * 2]) = {
          sums[tile][2 * half], sums[tile][2 * half + 1]};
    }
  }
  __syncthreads();
  const int i = threadIdx.x;
  const int token = i / kBlockRows, row = first_row + i % kBlockRows;
  if (token >= products.tokens || row >= products.rows) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += partial[w][i];
  products.y[token * products.y_stride + row] = sum;
}
static_assert(kMostFewRowsTokens * kBlockRows <= kThreads);

template <int kChunks>
void launch_tiles(Stream& stream, const Products& products, bool ahead) {
  const auto run = [&](auto kernel) {
    launch(stream, kernel, static_cast<unsigned>(ceil_divide(products.rows, kBlockRows)), kThreads,
           0, products, ahead);
  };
  const int tiles = ceil_divide(products.tokens, kTileTokens);
  if (tiles <= 1) {
    run(few_rows_kernel<kChunks, 1>);
  } else if (tiles <= 2) {
    run(few_rows_kernel<kChunks, 2>);
  } else {
    run(few_rows_kernel<kChunks, 4>);
  }
}

}  // namespace

bool few_rows_can(const Products& products) {
  return products.format == FormatId::kBF16 && !products.tiles && products.packed != nullptr &&
         products.experts == 0 && products.tokens <= kMostFewRowsTokens && products.cols % 8 == 0 &&
         products.cols <= kMostColumns && int64_t{products.rows} * products.cols <= kMostElements &&
         products.packed_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(products.packed) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(products.weights) % 16 == 0;
}

void few_rows_products(Stream& stream, const Products& products, bool ahead) {
  const int chunks = ceil_divide(products.cols, kWarps * kChunkColumns);
  for (int first = 0; first < products.tokens; first += kMostFewRowsTokens) {
    Products part = products;
    part.tokens = std::min(products.tokens - first, kMostFewRowsTokens);
    part.packed += first * products.packed_stride;
    part.y += first * products.y_stride;
    if (chunks <= 4) {
      launch_tiles<4>(stream, part, ahead);
    } else if (chunks <= 6) {
      launch_tiles<6>(stream, part, ahead);
    } else {
      launch_tiles<8>(stream, part, ahead);
    }
  }
}

}  // namespace braid::cuda

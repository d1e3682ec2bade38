#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/tile_rows.cuh"
#include "ops/linear/cuda/touched_expert.cuh"

namespace braid::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kTokens = 8;  // of a pass

template <bool kPacked>
struct Inputs;
template <>
struct Inputs<false> {
  static __device__ float element(const Products& p, int64_t token, int col) {
    return p.x[token * p.x_stride + col];
  }
};
template <>
struct Inputs<true> {
  static __device__ float element(const Products& p, int64_t token, int col) {
    return __uint_as_float(static_cast<uint32_t>(p.packed[token * p.packed_stride + col]) << 16);
  }
};

// A warp has one row; its lanes share out the columns. Sums of a lane first, then of the lanes.
template <typename Row, bool kPacked>
__global__ void __launch_bounds__(kWarps* kWarp) exact_rows(Products p) {
  const int lane = threadIdx.x % kWarp;
  const int row = blockIdx.x * kWarps + threadIdx.x / kWarp;
  wait_for_inputs();
  ExpertTokens tokens{0, 0, p.tokens};
  if (p.experts > 0) {
    tokens = find_tile(p.offsets, p.experts, blockIdx.y, 0);
    if (tokens.expert < 0) return;
  }
  if (row >= p.rows) return;
  const Row weights(p.weights + tokens.expert * p.matrix_bytes, p.row_bytes, row);
  for (int first = tokens.begin; first < tokens.end; first += kTokens) {
    float sums[kTokens] = {};
    const int count = min(kTokens, tokens.end - first);
    if constexpr (Row::kPlain) {
#pragma unroll 4
      for (int col = lane; col < p.cols; col += kWarp) {
        const float w = weights.element(col);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const int token = first + min(t, count - 1);
          sums[t] = fmaf(w, Inputs<kPacked>::element(p, token, col), sums[t]);
        }
      }
    } else {
      for (int unit = lane / 4; unit < p.cols / kUnitColumns; unit += kWarp / 4) {
        const int quad = lane % 4;
        float w[8];
        Row::expand(load_unit(weights, unit, quad, p.cols / kUnitColumns), unit, quad, w);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const int token = first + min(t, count - 1);
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const int col = Row::column(unit, quad, i);
            sums[t] = fmaf(w[i], Inputs<kPacked>::element(p, token, col), sums[t]);
          }
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float sum = warp_sum(sums[t]);
      if (lane == 0 && t < count) p.y[(first + t) * p.y_stride + row] = sum;
    }
  }
}

}  // namespace

void exact_products(Stream& stream, const Products& products) {
  const int slots = products.experts > 0 ? min(products.experts, products.tokens) : 1;
  const dim3 grid(ceil_divide(products.rows, kWarps), slots);
  with_rows(products.format, products.tiles, [&](auto row) {
    using Row = typename decltype(row)::Type;
    if (products.packed != nullptr) {
      launch(stream, exact_rows<Row, true>, grid, dim3(kWarps * kWarp), 0, products);
    } else {
      launch(stream, exact_rows<Row, false>, grid, dim3(kWarps * kWarp), 0, products);
    }
  });
}

}  // namespace braid::cuda

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/blocks.cuh"
#include "ops/linear/cuda/products.h"
#include "ops/linear/cuda/tensor_core.cuh"
#include "ops/linear/cuda/touched_expert.cuh"

namespace braid::cuda {
namespace {

// A block computes kRows rows for up to kTokens tokens of one expert. Tiles of weights and inputs,
// kDepth columns of them, go through a ring of kStages in shared memory; in a tile a row has 128
// bytes, whose 16-byte pieces are permuted so that eight rows' pieces of one column lie in
// different banks.
constexpr int kRows = 128, kTokens = 128, kDepth = 64, kStages = 3;
constexpr int kThreads = 256;
constexpr int kTileBytes = kRows * kDepth * 2;
constexpr int kSharedBytes = kStages * 2 * kTileBytes;
static_assert(kRows == kTokens);

__device__ __forceinline__ uint32_t place(int row, int piece) {
  return static_cast<uint32_t>(row * 128 + ((piece ^ (row & 7)) * 16));
}

// Formats that are copied as they are.
struct CopiedTile {
  __device__ CopiedTile(const Products& p, const uint8_t* weights, int rows)
      : weights_(weights), row_bytes_(p.row_bytes), cols_(p.cols), rows_(rows) {}
  __device__ void fetch(int step, uint32_t shared) {
#pragma unroll
    for (int i = 0; i < kRows * 8 / kThreads; ++i) {
      const int item = threadIdx.x + i * kThreads;
      const int row = item / 8, piece = item % 8;
      const int col = step * kDepth + piece * 8;
      const bool valid = row < rows_ && col < cols_;
      copy_async(shared + place(row, piece),
                 valid ? weights_ + row * row_bytes_ + int64_t{col} * 2 : weights_, valid);
    }
  }
  __device__ void store(unsigned char*) {}

 private:
  const uint8_t* weights_;
  int64_t row_bytes_;
  int cols_, rows_;
};

// Formats that are expanded on the way: fetch() begins to read, store() writes bfloat16.
template <FormatId kFormat>
struct ExpandedTile {
  static constexpr int kItems = kRows * (kDepth / kUnitColumns) * 4 / kThreads;

  __device__ ExpandedTile(const Products& p, const uint8_t* weights, int rows)
      : weights_(weights), row_bytes_(p.row_bytes), units_(p.cols / kUnitColumns), rows_(rows) {}
  __device__ void fetch(int step, uint32_t) {
    step_ = step;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int row = row_of(i), unit = unit_of(i);
      if (row < rows_ && unit < units_) {
        raw_[i] = Blocks<kFormat>::load(weights_ + row * row_bytes_, unit, threadIdx.x % 4);
      }
    }
  }
  __device__ void store(unsigned char* tile) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int row = row_of(i), unit = unit_of(i), quad = threadIdx.x % 4;
      float v[8] = {};
      if (row < rows_ && unit < units_) Blocks<kFormat>::expand(raw_[i], unit, quad, v);
      const int piece = unit % 2 * 4 + quad / 2, within = quad % 2 * 8;
      *reinterpret_cast<uint2*>(tile + place(row, piece) + within) =
          make_uint2(pack_bfloat16(v[0], v[1]), pack_bfloat16(v[2], v[3]));
      *reinterpret_cast<uint2*>(tile + place(row, piece + 2) + within) =
          make_uint2(pack_bfloat16(v[4], v[5]), pack_bfloat16(v[6], v[7]));
    }
  }

 private:
  // Eight neighbouring threads have the two units of a row.
  __device__ static int row_of(int i) { return (threadIdx.x + i * kThreads) / 8; }
  __device__ int unit_of(int) const { return step_ * 2 + threadIdx.x / 4 % 2; }

  const uint8_t* weights_;
  int64_t row_bytes_;
  int units_, rows_;
  int step_ = 0;
  typename Blocks<kFormat>::Raw raw_[kItems] = {};
};

template <typename WeightTile>
__global__ void __launch_bounds__(kThreads, 2) grouped_tiles(const __grid_constant__ Products p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  wait_for_inputs();
  let_next_start();
  const ExpertTokens tokens = find_tile(p.offsets, p.experts, blockIdx.y, kTokens);
  if (tokens.expert < 0) return;
  const int count = tokens.end - tokens.begin;
  const int first_row = blockIdx.x * kRows;
  WeightTile weights(p, p.weights + tokens.expert * p.matrix_bytes + first_row * p.row_bytes,
                     min(kRows, p.rows - first_row));
  const uint16_t* const inputs = p.packed + tokens.begin * p.packed_stride;
  const int steps = (p.cols + kDepth - 1) / kDepth;
  const auto weight_tile = [&](int step) { return memory + step % kStages * 2 * kTileBytes; };
  const auto fetch = [&](int step) {
    if (step < steps) {
      const uint32_t shared = shared_address(weight_tile(step));
      weights.fetch(step, shared);
#pragma unroll
      for (int i = 0; i < kTokens * 8 / kThreads; ++i) {
        const int item = threadIdx.x + i * kThreads;
        const int token = item / 8, piece = item % 8;
        const int col = step * kDepth + piece * 8;
        // Inputs have zeros up to a multiple of kDepth columns.
        copy_async(shared + kTileBytes + place(token, piece),
                   inputs + (token < count ? token : 0) * p.packed_stride + col, token < count);
      }
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
      for (int k = 0; k < kDepth / 16; ++k) {
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
         dim3(kThreads), kSharedBytes, products);
}

}  // namespace

void grouped_tiles_products(Stream& stream, const Products& products) {
  with_format(products.format, [&](auto format) {
    constexpr FormatId kFormat = format();
    if constexpr (kFormat == FormatId::kBF16) {
      launch_tiles<CopiedTile>(stream, products);
    } else if constexpr (kFormat != FormatId::kF32) {
      launch_tiles<ExpandedTile<kFormat>>(stream, products);
    }
  });
}

}  // namespace braid::cuda

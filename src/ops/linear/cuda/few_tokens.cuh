#pragma once

// Weights streamed through registers into the tensor cores, once for up to kTokenTiles · 8 tokens.
//
// A block has kRowWarps · 32 rows; its other warps split the columns, in runs of kRunChunks chunks
// of 32 that are dealt out in turn. Blocks of a cluster split the columns further and add their
// sums up through each other's shared memory. Which sums there are, and their order, depends on the
// matrix's size alone. Within a chunk the order of columns is free as long as weights and inputs
// agree on it: weights are handed to the tensor cores as they lie.

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/blocks.cuh"
#include "ops/linear/cuda/products.h"
#include "ops/linear/cuda/tensor_core.cuh"
#include "ops/linear/cuda/touched_expert.cuh"

namespace braid::cuda {

inline constexpr int kFewWarps = 8;
inline constexpr int kRunChunks = 2;

// What a thread holds of a row's chunk, and its eight weights as bfloat16 pairs. kNeighbours: they
// are columns 8 quad … 8 quad + 7; otherwise those of Blocks.
struct PlainChunk {
  using Raw = uint4;
  static constexpr bool kNeighbours = true;
  static __device__ Raw load(const uint8_t* row, int chunk, int quad) {
    return load_streamed(row + chunk * 64 + quad * 16);
  }
  // Past the end of rows whose length is not a multiple of 32.
  static __device__ Raw load_checked(const uint8_t* row, int chunk, int quad, int cols) {
    return chunk * kUnitColumns + quad * 8 < cols ? load(row, chunk, quad) : make_uint4(0, 0, 0, 0);
  }
};
struct BFloat16Chunk : PlainChunk {
  static __device__ void expand(const Raw& raw, int, int, uint32_t (&w)[4]) {
    w[0] = raw.x, w[1] = raw.y, w[2] = raw.z, w[3] = raw.w;
  }
};
struct HalfChunk : PlainChunk {
  static __device__ void expand(const Raw& raw, int, int, uint32_t (&w)[4]) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = pack_bfloat16(half_bits(words[i] & 0xffff), half_bits(words[i] >> 16));
    }
  }
};
template <FormatId kFormat>
struct BlockChunk {
  using Raw = typename Blocks<kFormat>::Raw;
  static constexpr bool kNeighbours = false;
  static __device__ Raw load_checked(const uint8_t* row, int chunk, int quad, int) {
    return Blocks<kFormat>::load(row, chunk, quad);
  }
  static __device__ void expand(const Raw& raw, int chunk, int quad, uint32_t (&w)[4]) {
    float v[8];
    Blocks<kFormat>::expand(raw, chunk, quad, v);
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = pack_bfloat16(v[2 * i], v[2 * i + 1]);
  }
};

struct FewTokensPlan {
  int splits;  // blocks of a cluster
};

// Row warps of a block and splits: as many blocks as run at once, so that as many bytes as can be
// are on their way; with fewer splits where there is a choice. One chunk is what a warp takes in a
// step. Of the matrix and the device alone.
struct FewTokensShape {
  int row_warps;
  FewTokensPlan plan;
};
FewTokensShape few_tokens_shape(Stream& stream, const Products& products, int chunks);

// Where the warps' sums of a block meet. Neighbouring tokens lie in other banks.
template <int kTokenTiles, int kRowWarps>
struct Partial {
  static constexpr int kKWarps = kFewWarps / kRowWarps;
  static constexpr int kRows = 32 * kRowWarps;
  float sums[kKWarps][8 * kTokenTiles][kRows + 4];
};

// Adds up the sums of the warps, then of the blocks, in their order, and stores them. sums: of rows
// 32 row_warp + 16 tile + l / 4 and 8 more, as multiply_add() leaves them.
template <int kTokenTiles, int kRowWarps>
__device__ __forceinline__ void add_up(const Products& p, const FewTokensPlan& plan,
                                       const float (&sums)[2][kTokenTiles][4],
                                       Partial<kTokenTiles, kRowWarps>& partial, int block_row,
                                       int first_token, int count) {
  using Sums = Partial<kTokenTiles, kRowWarps>;
  constexpr int kRows = Sums::kRows, kThreads = kFewWarps * kWarp;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int row_warp = warp % kRowWarps, k_warp = warp / kRowWarps;
  const int group = lane / 4, quad = lane % 4;
  const int split = blockIdx.y;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        partial
            .sums[k_warp][8 * t + 2 * quad + i % 2][row_warp * 32 + tile * 16 + i / 2 * 8 + group] =
            sums[tile][t][i];
      }
    }
  }
  __syncthreads();
  const int used = count * kRows;
  const auto add_warps = [&](int token, int row) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < Sums::kKWarps; ++k) sum += partial.sums[k][token][row];
    return sum;
  };
  const auto store = [&](int token, int row, float sum) {
    if (block_row + row < p.rows) p.y[(first_token + token) * p.y_stride + block_row + row] = sum;
  };
  if (plan.splits == 1) {
    for (int i = threadIdx.x; i < used; i += kThreads) {
      store(i / kRows, i % kRows, add_warps(i / kRows, i % kRows));
    }
    __syncthreads();  // before the next sums
    return;
  }
  for (int i = threadIdx.x; i < used; i += kThreads) {
    partial.sums[0][i / kRows][i % kRows] = add_warps(i / kRows, i % kRows);
  }
  sync_cluster();
  for (int i = split * kThreads + threadIdx.x; i < used; i += plan.splits * kThreads) {
    const uint32_t at = shared_address(&partial.sums[0][i / kRows][i % kRows]);
    float sum = 0;
    for (int rank = 0; rank < plan.splits; ++rank) sum += read_of_block(at, rank);
    store(i / kRows, i % kRows, sum);
  }
  sync_cluster();  // the others have read
}

template <typename Chunk, int kTokenTiles, int kRowWarps, int kDepth>
__global__ void __launch_bounds__(kFewWarps* kWarp, 2)
    few_tokens(const __grid_constant__ Products p, const FewTokensPlan plan) {
  constexpr int kKWarps = kFewWarps / kRowWarps;
  constexpr int kRows = 32 * kRowWarps;
  constexpr int kTokens = 8 * kTokenTiles;
  __shared__ Partial<kTokenTiles, kRowWarps> partial;

  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int row_warp = warp % kRowWarps, k_warp = warp / kRowWarps;
  const int group = lane / 4, quad = lane % 4;
  const int block_row = blockIdx.x * kRows;
  const int split = blockIdx.y;

  // Chunks [first_chunk, end_chunk) are this block's; `steps` of them this warp's.
  const int chunks = (p.cols + kUnitColumns - 1) / kUnitColumns;
  const int runs = (chunks + kRunChunks - 1) / kRunChunks;
  const int first_run = runs * split / plan.splits;
  const int end_chunk = min(runs * (split + 1) / plan.splits * kRunChunks, chunks);
  const int first_chunk = first_run * kRunChunks;
  const auto chunk_of = [&](int step) {
    return first_chunk + (step / kRunChunks * kKWarps + k_warp) * kRunChunks + step % kRunChunks;
  };

  const uint8_t* weights = p.weights + block_row * p.row_bytes;
  ExpertTokens tokens{0, 0, p.tokens};
  if (p.experts > 0) {
    wait_for_inputs();
    tokens = find_tile(p.offsets, p.experts, blockIdx.z, 0);
    if (tokens.expert < 0) return;  // for all blocks of a cluster alike
    weights += tokens.expert * p.matrix_bytes;
  }
  uint32_t row_offset[2][2];
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_warp * 32 + tile * 16 + half * 8 + group;
      row_offset[tile][half] =
          static_cast<uint32_t>(min(row, p.rows - 1 - block_row) * p.row_bytes);
    }
  }

  typename Chunk::Raw raw[kDepth][2][2];
  const auto load_weights = [&](typename Chunk::Raw(&to)[2][2], int step) {
    const int chunk = chunk_of(step);
    if (chunk >= end_chunk) return;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        to[tile][half] = Chunk::load_checked(weights + row_offset[tile][half], chunk, quad, p.cols);
      }
    }
  };
#pragma unroll
  for (int d = 0; d < kDepth; ++d) load_weights(raw[d], d);
  if (p.experts == 0) wait_for_inputs();

  for (int first_token = tokens.begin; first_token < tokens.end; first_token += kTokens) {
    const int count = min(kTokens, tokens.end - first_token);
    if (first_token != tokens.begin) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) load_weights(raw[d], d);
    }
    const uint16_t* x[kTokenTiles];
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      x[t] = p.packed + (first_token + min(8 * t + group, count - 1)) * p.packed_stride +
             quad * (Chunk::kNeighbours ? 8 : 4);
    }
    const auto load_inputs = [&](uint4(&to)[kTokenTiles], int step) {
      const int chunk = chunk_of(step);
      if (chunk >= end_chunk) return;
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        const uint16_t* from = x[t] + chunk * kUnitColumns;
        if constexpr (Chunk::kNeighbours) {
          to[t] = *reinterpret_cast<const uint4*>(from);
        } else {
          const uint2 low = *reinterpret_cast<const uint2*>(from);
          const uint2 high = *reinterpret_cast<const uint2*>(from + 16);
          to[t] = make_uint4(low.x, low.y, high.x, high.y);
        }
      }
    };

    float sums[2][kTokenTiles][4] = {};
    uint4 inputs[2][kTokenTiles];
    load_inputs(inputs[0], 0);
    for (int base = 0; chunk_of(base) < end_chunk; base += kDepth) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int step = base + d;
        if (chunk_of(step) < end_chunk) {
          load_inputs(inputs[(d + 1) % 2], step + 1);
#pragma unroll
          for (int tile = 0; tile < 2; ++tile) {
            uint32_t low[4], high[4];
            Chunk::expand(raw[d][tile][0], chunk_of(step), quad, low);
            Chunk::expand(raw[d][tile][1], chunk_of(step), quad, high);
#pragma unroll
            for (int t = 0; t < kTokenTiles; ++t) {
              const uint4& b = inputs[d % 2][t];
              multiply_add(sums[tile][t], low[0], high[0], low[1], high[1], b.x, b.y);
              multiply_add(sums[tile][t], low[2], high[2], low[3], high[3], b.z, b.w);
            }
          }
          load_weights(raw[d], step + kDepth);
        }
      }
    }

    add_up<kTokenTiles, kRowWarps>(p, plan, sums, partial, block_row, first_token, count);
  }
}

// Launches such a kernel with as many blocks in a cluster as the plan says.
inline void launch_few(Stream& stream, void (*kernel)(Products, FewTokensPlan), int block_rows,
                       const Products& products, const FewTokensPlan& plan) {
  const int slots = products.experts > 0 ? std::min(products.experts, products.tokens) : 1;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {1, static_cast<unsigned>(plan.splits), 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ceil_divide(products.rows, block_rows), plan.splits, slots);
  config.blockDim = dim3(kFewWarps * kWarp);
  config.stream = stream.cuda().handle();
  config.attrs = attributes;
  config.numAttrs = !stream.cuda().overlaps_kernels() ? 0 : plan.splits == 1 ? 1 : 2;
  BRAID_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, products, plan));
}

template <typename Chunk, int kTokenTiles, int kRowWarps, int kDepth>
void launch_few_tokens(Stream& stream, const Products& products, const FewTokensPlan& plan) {
  launch_few(stream, few_tokens<Chunk, kTokenTiles, kRowWarps, kDepth>, 32 * kRowWarps, products,
             plan);
}

}  // namespace braid::cuda

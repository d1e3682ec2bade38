#pragma once

// As few_tokens.cuh, for weights in the layout of quant/device_tiles.h. Panels of 32 rows stream
// through a ring in shared memory, piece by piece, with one bulk copy each; every warp has a ring
// of its own and brings its own pieces. A block has plan.row_warps times one or two panels; its
// other warps and the blocks of its cluster split the columns. Inputs lie in shared memory. Which
// sums there are, and their order, depends on the matrix and the device, not on the number of
// tokens.

#include <algorithm>

#include "ops/cuda/async_copy.cuh"
#include "ops/linear/cuda/few_tokens.cuh"
#include "ops/linear/cuda/tile_units.cuh"

namespace braid::cuda {

struct TilesPlan {
  int row_warps;   // of a block, each with the kernel's number of panels
  int splits;      // blocks of a cluster
  int input_cols;  // of the inputs at a time; a multiple of a piece's
};

// Sizes of the kernel's shared memory.
template <typename Layout, int kTokenTiles, int kPanels, int kSlots>
struct FewTilesMemory {
  static constexpr int kRingBytes = kSlots * Piece<Layout>::kBytes;  // of a warp
  // Floats of a row of sums in shared memory.
  static __host__ __device__ int sum_stride(int row_warps) {
    return kTileRows * kPanels * row_warps + 4;
  }
  // The sums lie where the rings were.
  static __host__ __device__ int rings_and_sums(int row_warps) {
    const int rings = kFewWarps * kRingBytes;
    const int sums = kFewWarps / row_warps * 8 * kTokenTiles * sum_stride(row_warps) * 4;
    return ((rings > sums ? rings : sums) + 127) / 128 * 128;
  }
  // Neighbouring tokens lie in other banks.
  static __host__ __device__ int input_stride(int cols) { return cols * 2 + 64; }
  static __host__ __device__ int bytes(const TilesPlan& plan) {
    return rings_and_sums(plan.row_warps) + 8 * kTokenTiles * input_stride(plan.input_cols);
  }
};

// kBulk: with the copy engine, from Hopper on.
template <FormatId kFormat, int kTokenTiles, int kPanels, int kSlots, bool kBulk>
__global__ void __launch_bounds__(kFewWarps* kWarp, kTokenTiles == 4 ? 1 : 2)
    few_tiles(const __grid_constant__ Products p, const TilesPlan plan) {
  using Layout = TileLayout<kFormat>;
  using Memory = FewTilesMemory<Layout, kTokenTiles, kPanels, kSlots>;
  constexpr int kThreads = kFewWarps * kWarp, kTokens = 8 * kTokenTiles;
  constexpr int kPieceUnits = Piece<Layout>::kUnits, kPieceBytes = Piece<Layout>::kBytes,
                kPieceCols = Piece<Layout>::kCols;
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ uint64_t full[kFewWarps * kSlots];

  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int group = lane / 4, quad = lane % 4;
  const int row_warp = warp % plan.row_warps, k_warp = warp / plan.row_warps;
  const int k_warps = kFewWarps / plan.row_warps;
  const int block_rows = kTileRows * kPanels * plan.row_warps;
  const int block_row = blockIdx.x * block_rows;
  const int split = blockIdx.y;

  // Pieces [first_piece, end_piece) of a panel are this block's; `steps` of them this warp's.
  const int units = p.cols / Layout::kUnitCols;
  const int pieces = (units + kPieceUnits - 1) / kPieceUnits;
  const int first_piece = pieces * split / plan.splits;
  const int end_piece = pieces * (split + 1) / plan.splits;
  const int panels = (p.rows + kTileRows - 1) / kTileRows;
  const int first_panel = (blockIdx.x * plan.row_warps + row_warp) * kPanels;
  const int steps = first_panel >= panels
                        ? 0
                        : max(0, (end_piece - first_piece - k_warp + k_warps - 1) / k_warps);
  const auto piece_of = [&](int step) { return first_piece + k_warp + step * k_warps; };

  unsigned char* const ring = memory + warp * Memory::kRingBytes;
  uint64_t* const barriers = full + warp * kSlots;
  if constexpr (kBulk) {
    if (lane == 0) {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) init_barrier(shared_address(barriers + slot), 1);
      publish_barriers();
    }
    __syncwarp();
  }

  const uint8_t* weights = p.weights;
  ExpertTokens tokens{0, 0, p.tokens};
  if (p.experts > 0) {
    wait_for_inputs();
    tokens = find_tile(p.offsets, p.experts, blockIdx.z, 0);
    if (tokens.expert < 0) return;  // for all blocks of a cluster alike
    weights += tokens.expert * p.matrix_bytes;
  }
  const uint8_t* panel[kPanels];
#pragma unroll
  for (int i = 0; i < kPanels; ++i) {
    panel[i] = weights + min(first_panel + i, panels - 1) * kTileRows * p.row_bytes;
  }

  // Begins to bring piece `i` of the warp, which is of panel i % kPanels, to a place of the ring.
  const auto fill = [&](int i, int slot) {
    const int piece = piece_of(i / kPanels);
    const int bytes = min(kPieceUnits, units - piece * kPieceUnits) * Layout::kUnitBytes;
    const uint8_t* from = panel[kPanels == 1 ? 0 : i % kPanels] + piece * kPieceBytes;
    const uint32_t to = shared_address(ring + slot * kPieceBytes);
    if constexpr (kBulk) {
      if (lane == 0 && i < steps * kPanels) {
        arrive_and_expect(shared_address(barriers + slot), bytes);
        copy_bytes(to, from, bytes, shared_address(barriers + slot));
      }
    } else {
      if (i < steps * kPanels) {
        for (int at = lane * 16; at < bytes; at += kWarp * 16) copy_async(to + at, from + at, true);
      }
      commit_copies();
    }
  };
#pragma unroll
  for (int i = 0; i < kSlots; ++i) fill(i, i);
  if (p.experts == 0) wait_for_inputs();

  unsigned char* const inputs = memory + Memory::rings_and_sums(plan.row_warps);
  const int input_stride = Memory::input_stride(plan.input_cols);
  int slot = 0;
  uint32_t parity = 0;

  for (int first_token = tokens.begin; first_token < tokens.end; first_token += kTokens) {
    const int count = min(kTokens, tokens.end - first_token);
    if (first_token != tokens.begin) {
#pragma unroll
      for (int i = 0; i < kSlots; ++i) fill(i, (slot + i) % kSlots);
    }
    float sums[kPanels][2][kTokenTiles][4] = {};
    int step = 0;
    for (int begin = first_piece; begin < end_piece; begin += plan.input_cols / kPieceCols) {
      const int end = min(begin + plan.input_cols / kPieceCols, end_piece);
      const int first_col = begin * kPieceCols;
      const int row_pieces = (min(end * kPieceCols, p.cols) - first_col) / 8;  // of 16 bytes
      if (begin != first_piece) __syncthreads();
      const uint16_t* const from = p.packed + first_token * p.packed_stride + first_col;
      for (int token = warp; token < count; token += kFewWarps) {
        for (int i = lane; i < row_pieces; i += kWarp) {
          const uint16_t* source = from + token * p.packed_stride + i * 8;
          unsigned char* const to = inputs + token * input_stride + i * 16;
          if constexpr (kBulk) {
            copy_async(shared_address(to), source, true);
          } else {
            *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(source);
          }
        }
      }
      if constexpr (kBulk) {
        commit_copies();
        wait_for_copies<0>();
      }
      __syncthreads();
      const unsigned char* x[kTokenTiles];
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        x[t] = inputs + min(8 * t + group, count - 1) * input_stride + quad * 16;
      }

      for (; step < steps && piece_of(step) < end; ++step) {
        const int piece = piece_of(step);
        const int piece_units = min(kPieceUnits, units - piece * kPieceUnits);
        const int offset = (piece * kPieceCols - first_col) * 2;
#pragma unroll
        for (int i = 0; i < kPanels; ++i) {
          if constexpr (kBulk) {
            wait_barrier(shared_address(barriers + slot), parity);
          } else {
            wait_for_copies<kSlots - 1>();
            __syncwarp();
          }
          const unsigned char* from_ring = ring + slot * kPieceBytes;
#pragma unroll
          for (int u = 0; u < kPieceUnits; ++u) {
            if (u < piece_units) {
              UnitCodes<Layout> unit;
              unit.load(from_ring + u * Layout::kUnitBytes, lane);
              if (u == piece_units - 1) {
                __syncwarp();  // all have read
                fill(step * kPanels + i + kSlots, slot);
              }
              const auto inputs_of = [&](int t, int chunk) {
                return *reinterpret_cast<const uint4*>(
                    x[t] + offset + (u * Layout::kUnitCols + chunk * kUnitColumns) * 2);
              };
              multiply_unit(unit, inputs_of, sums[i]);
            }
          }
          if (++slot == kSlots) slot = 0, parity ^= 1;
        }
      }
    }

    // Adds up the sums of the warps, then of the blocks, in their order.
    float* const partial = reinterpret_cast<float*>(memory);
    const int stride = Memory::sum_stride(plan.row_warps);
    if constexpr (!kBulk) wait_for_copies<0>();
    __syncthreads();  // the rings are read
#pragma unroll
    for (int i = 0; i < kPanels; ++i) {
      float4 scales = make_float4(1, 1, 1, 1);
      if constexpr (Layout::kGroup == 0) {
        scales =
            __ldg(reinterpret_cast<const float4*>(panel[i] + units * Layout::kUnitBytes) + group);
      }
      const float row_scales[4] = {scales.x * 64, scales.y * 64, scales.z * 64, scales.w * 64};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const int token = 8 * t + 2 * quad + k % 2;
            const int row = (row_warp * kPanels + i) * kTileRows + half * 16 + k / 2 * 8 + group;
            partial[(k_warp * kTokens + token) * stride + row] =
                sums[i][half][t][k] * row_scales[2 * half + k / 2];
          }
        }
      }
    }
    __syncthreads();
    const auto add_warps = [&](int token, int row) {
      float sum = partial[token * stride + row];
      for (int k = 1; k < k_warps; ++k) sum += partial[(k * kTokens + token) * stride + row];
      return sum;
    };
    const auto store = [&](int token, int row, float sum) {
      if (block_row + row < p.rows) p.y[(first_token + token) * p.y_stride + block_row + row] = sum;
    };
    // block_rows is a power of two.
    const int used = count * block_rows, shift = 31 - __clz(block_rows);
    if (plan.splits == 1) {
      for (int i = threadIdx.x; i < used; i += kThreads) {
        store(i >> shift, i & (block_rows - 1), add_warps(i >> shift, i & (block_rows - 1)));
      }
    } else {
      for (int i = threadIdx.x; i < used && k_warps > 1; i += kThreads) {
        const int token = i >> shift, row = i & (block_rows - 1);
        partial[token * stride + row] = add_warps(token, row);
      }
      sync_cluster();
      for (int i = split * kThreads + threadIdx.x; i < used; i += plan.splits * kThreads) {
        const int token = i >> shift, row = i & (block_rows - 1);
        const uint32_t at = shared_address(partial + token * stride + row);
        float sum = 0;
        for (int rank = 0; rank < plan.splits; ++rank) sum += read_of_block(at, rank);
        store(token, row, sum);
      }
      sync_cluster();  // the others have read
    }
    if (first_token + kTokens < tokens.end) {
      if constexpr (kBulk) publish_to_copies();
      __syncthreads();  // before the rings are filled again
    }
  }
}

template <FormatId kFormat, int kTokenTiles, int kPanels, int kSlots, bool kBulk>
void launch_few_tiles(Stream& stream, const Products& products, TilesPlan plan) {
  if (products.tokens == 0) return;
  using Layout = TileLayout<kFormat>;
  using Memory = FewTilesMemory<Layout, kTokenTiles, kPanels, kSlots>;
  const auto kernel = few_tiles<kFormat, kTokenTiles, kPanels, kSlots, kBulk>;
  constexpr int kMostBytes = 227 * 1024 - 1024, kEarlierBytes = 99 * 1024 - 1024;
  static const cudaError_t allowed = [&] {
    const cudaError_t larger = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBulk ? kMostBytes : kEarlierBytes);
    const cudaError_t share = cudaFuncSetAttribute(
        kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    return larger != cudaSuccess ? larger : share;
  }();
  BRAID_CUDA_CHECK(allowed);
  // As many columns of inputs at a time as there is room for.
  constexpr int kPieceCols = Piece<Layout>::kCols;
  const int pieces = ceil_divide(ceil_divide(products.cols, kPieceCols), plan.splits);
  plan.input_cols = 0;
  const int left = (kBulk ? kMostBytes : kEarlierBytes) - Memory::bytes(plan);
  plan.input_cols = std::min(pieces, left / (8 * kTokenTiles * 2 * kPieceCols)) * kPieceCols;

  const int slots = products.experts > 0 ? std::min(products.experts, products.tokens) : 1;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {1, static_cast<unsigned>(plan.splits), 1};
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(ceil_divide(products.rows, kTileRows * kPanels * plan.row_warps), plan.splits, slots);
  config.blockDim = dim3(kFewWarps * kWarp);
  config.dynamicSmemBytes = static_cast<size_t>(Memory::bytes(plan));
  config.stream = stream.cuda().handle();
  config.attrs = attributes;
  config.numAttrs = !stream.cuda().overlaps_kernels() ? 0 : plan.splits == 1 ? 1 : 2;
  BRAID_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, products, plan));
}

// Row warps of a block and splits, of the matrix and the device alone. weight_bytes: of two columns
// of a row; most_panels: that a warp may have.
struct TilesShape {
  int panels;
  TilesPlan plan;
};
TilesShape few_tiles_shape(Stream& stream, const Products& products, int weight_bytes,
                           int piece_cols, int most_panels);

// Whether this program has the kernels that use the copy engine for the stream's device.
bool has_bulk_copies(Stream& stream);

// kAll: with a kernel for every number of tokens and panels.
template <FormatId kFormat, bool kAll>
void few_tiles_in(Stream& stream, const Products& products, int tokens) {
  using Layout = TileLayout<kFormat>;
  const TilesShape shape =
      few_tiles_shape(stream, products, Layout::kBits / 4, Piece<Layout>::kCols, kAll ? 2 : 1);
  const TilesPlan& plan = shape.plan;
  if (!has_bulk_copies(stream)) {
    if (tokens <= 8) return launch_few_tiles<kFormat, 1, 1, 3, false>(stream, products, plan);
    return launch_few_tiles<kFormat, 4, 1, 3, false>(stream, products, plan);
  }
  if (tokens > 16) return launch_few_tiles<kFormat, 4, 1, 4, true>(stream, products, plan);
  if constexpr (kAll) {
    if (shape.panels == 2) {
      if (tokens <= 8) return launch_few_tiles<kFormat, 1, 2, 4, true>(stream, products, plan);
      return launch_few_tiles<kFormat, 2, 2, 3, true>(stream, products, plan);
    }
    if (tokens <= 8) return launch_few_tiles<kFormat, 1, 1, 4, true>(stream, products, plan);
  }
  launch_few_tiles<kFormat, 2, 1, 3, true>(stream, products, plan);
}

}  // namespace braid::cuda

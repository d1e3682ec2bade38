// Compiled for sm_90a alone.

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/elementwise/cuda/activations.cuh"
#include "ops/linear/cuda/tensor_core.cuh"
#include "ops/linear/cuda/tiles.cuh"
#include "ops/linear/cuda/warpgroup.cuh"
#include "ops/linear/cuda/wide_products.h"

namespace braid::cuda {
namespace {

// A tile is 256 rows of weights (gated: 128 of gate and of up) × up to kMostTokens tokens of one
// expert. Two groups of four warps multiply, each two boxes of 64 rows; a third one copies.
constexpr int kMostTokens = 192;
constexpr int kBoxes = 4, kBoxRows = 64;
constexpr int kBoxBytes = kBoxRows * kTileColumns * 2;
constexpr int kWeightBytes = kBoxes * kBoxBytes;
constexpr int kInputBytes = kMostTokens * kTileColumns * 2;
constexpr int kStageBytes = kWeightBytes + kInputBytes;
constexpr int kStages = 4;
constexpr int kGroupThreads = 128;
constexpr int kWideThreads = 3 * kGroupThreads;
constexpr int kMultiplierWarps = 2 * kGroupThreads / kWarp;
constexpr int kMostExperts = 512;
// Alignment of the stages, too, which a kernel without other shared memory gets by itself.
constexpr int kBoxAlignment = 1024;

struct Shared {
  uint64_t full[kStages], empty[kStages];
  int first_tile[kMostExperts + 1];  // tiles of tokens of the experts before each
  int warp_tiles[kWideThreads / kWarp];
};
constexpr int kSharedBytes = kStages * kStageBytes + static_cast<int>(sizeof(Shared));
static_assert(kSharedBytes <= 227 << 10);

struct Tile {
  int expert, begin, count;  // tokens
  int first;                 // unit: 64 rows, or 64 of gate and 64 of up
};

__device__ __forceinline__ int tiles_of(int tokens) {
  return (tokens + kMostTokens - 1) / kMostTokens;
}

// Units of a full tile, and those of a matrix.
__device__ __forceinline__ int tile_units(const WideProducts& p) { return p.gated ? 2 : 4; }
__device__ __forceinline__ int matrix_units(const WideProducts& p) {
  return (p.rows + kBoxRows - 1) / kBoxRows;
}

// Fills first_tile; all threads call it.
__device__ void count_tiles(const WideProducts& p, Shared& shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  constexpr int kEach = (kMostExperts + kWideThreads - 1) / kWideThreads;
  const int first = min(static_cast<int>(threadIdx.x) * kEach, p.experts);
  const int last = min(first + kEach, p.experts);
  int own[kEach] = {}, sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (first + i < last) own[i] = tiles_of(p.offsets[first + i + 1] - p.offsets[first + i]);
    sum += own[i];
  }
  int through = sum;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, through, distance);
    if (lane >= distance) through += other;
  }
  if (lane == kWarp - 1) shared.warp_tiles[warp] = through;
  __syncthreads();
  int before = through - sum;
  for (int w = 0; w < warp; ++w) before += shared.warp_tiles[w];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (first + i < last) shared.first_tile[first + i] = before;
    before += own[i];
  }
  if (threadIdx.x == kWideThreads - 1) shared.first_tile[p.experts] = before;
  __syncthreads();
}

// Calls run(tile) for this block's tiles: full ones of all experts first, then those with the last
// rows of matrices that do not fill one.
template <typename Run>
__device__ __forceinline__ void for_each_tile(const WideProducts& p, const Shared& shared,
                                              const Run& run) {
  const int total = p.experts > 0 ? shared.first_tile[p.experts] : tiles_of(p.tokens);
  const int each = tile_units(p), full = matrix_units(p) / each;
  const int partial = matrix_units(p) % each > 0 ? 1 : 0;
  for (int i = blockIdx.x; i < total * (full + partial); i += gridDim.x) {
    int index, row_tile;
    if (i < total * full) {
      index = i / full;
      row_tile = i - index * full;
    } else {
      index = i - total * full;
      row_tile = full;
    }
    int expert = 0, begin = 0, end = p.tokens, tiles = total;
    if (p.experts > 0) {
      int high = p.experts;  // first_tile[expert] <= index < first_tile[high]
      while (high - expert > 1) {
        const int middle = (expert + high) / 2;
        (shared.first_tile[middle] <= index ? expert : high) = middle;
      }
      tiles = shared.first_tile[expert + 1] - shared.first_tile[expert];
      index -= shared.first_tile[expert];
      begin = p.offsets[expert];
      end = p.offsets[expert + 1];
    }
    // Tiles of an expert are of one size.
    const int share = (end - begin + tiles - 1) / tiles;
    begin += index * share;
    if (begin < end) run(Tile{expert, begin, min(share, end - begin), row_tile * each});
  }
}

// The same for a pair of blocks (a cluster) that share the weights of a row tile: each has half of
// the tokens. One matrix only.
template <typename Run>
__device__ __forceinline__ void for_each_pair_tile(const WideProducts& p, int rank,
                                                   const Run& run) {
  const int each = tile_units(p), row_tiles = (matrix_units(p) + each - 1) / each;
  const int pairs = (p.tokens + 2 * kMostTokens - 1) / (2 * kMostTokens);
  const int of_pair = (p.tokens + pairs - 1) / pairs;
  for (int i = blockIdx.x / 2; i < row_tiles * pairs; i += gridDim.x / 2) {
    const int row_tile = i / pairs, begin = (i - row_tile * pairs) * of_pair;
    const int count = min(of_pair, p.tokens - begin), half = (count + 1) / 2;
    run(Tile{0, begin + rank * half, rank == 0 ? half : count - half, row_tile * each});
  }
}

// Slots of the ring in turn.
class Ring {
 public:
  __device__ int slot() const { return slot_; }
  __device__ uint32_t parity() const { return parity_; }
  __device__ void advance() {
    if (++slot_ == kStages) slot_ = 0, parity_ ^= 1;
  }

 private:
  int slot_ = 0;
  uint32_t parity_ = 0;
};

__device__ __forceinline__ void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ void bring(const WideProducts& p, Shared& shared, uint32_t stages) {
  const int thread = threadIdx.x % kGroupThreads;
  const int piece = thread % 8;
  constexpr int kEach = kMostTokens / (kGroupThreads / 8);
  Ring ring;
  for_each_tile(p, shared, [&](const Tile& tile) {
    const uint16_t* from[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int token = min(thread / 8 + i * (kGroupThreads / 8), tile.count - 1) + tile.begin;
      from[i] = p.x + (p.x_rows != nullptr ? p.x_rows[token] : token) * p.x_stride + piece * 8;
    }
    const int boxes =
        p.gated ? min(2, matrix_units(p) - tile.first) * 2 : min(4, matrix_units(p) - tile.first);
    for (int step = 0; step < p.steps; ++step, ring.advance()) {
      wait_barrier(shared_address(&shared.empty[ring.slot()]), ring.parity() ^ 1);
      const uint32_t full = shared_address(&shared.full[ring.slot()]);
      const uint32_t stage = stages + ring.slot() * kStageBytes;
      if (thread == 0) {
        arrive_and_expect(full, boxes * kBoxBytes);
        const int column = step * kTileColumns;
        for (int box = 0; box < boxes; ++box) {
          const bool up = p.gated && box % 2 == 1;
          const int unit = tile.first + (p.gated ? box / 2 : box);
          copy_box(stage + box * kBoxBytes, up ? &p.up : &p.weights, column,
                   tile.expert * p.expert_rows + (up ? p.up_row : 0) + unit * kBoxRows, full);
        }
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int token = thread / 8 + i * (kGroupThreads / 8);
        if (token < tile.count) {
          copy16_async(stage + kWeightBytes + place(token, piece), from[i] + step * kTileColumns,
                       true);
        }
      }
      arrive_after_copies(full);
    }
  });
  wait_for_copies<0>();
}

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
// At the barrier that the other block of a pair has in the same place.
__device__ __forceinline__ void arrive_there(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// A box to the same place of both blocks, each of whose barriers hears of it.
__device__ __forceinline__ void copy_box_to_both(uint32_t to, const CUtensorMap* map, int column,
                                                 int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(static_cast<uint16_t>(3))
      : "memory");
}

// By one thread.
__device__ void bring_pair(const WideProducts& p, Shared& shared, uint32_t stages, int rank) {
  Ring ring;
  for_each_pair_tile(p, rank, [&](const Tile& tile) {
    const int units = min(tile_units(p), matrix_units(p) - tile.first);
    const int boxes = p.gated ? 2 * units : units;
    const int input_boxes = (tile.count + kBoxRows - 1) / kBoxRows;
    for (int step = 0; step < p.steps; ++step, ring.advance()) {
      wait_barrier(shared_address(&shared.empty[ring.slot()]), ring.parity() ^ 1);
      const uint32_t full = shared_address(&shared.full[ring.slot()]);
      const uint32_t stage = stages + ring.slot() * kStageBytes;
      arrive_and_expect(full, (boxes + input_boxes) * kBoxBytes);
      const int column = step * kTileColumns;
      for (int box = 2 * rank; box < min(2 * rank + 2, boxes); ++box) {
        const bool up = p.gated && box % 2 == 1;
        const int unit = tile.first + (p.gated ? box / 2 : box);
        copy_box_to_both(stage + box * kBoxBytes, up ? &p.up : &p.weights, column,
                         (up ? p.up_row : 0) + unit * kBoxRows, full);
      }
      for (int box = 0; box < input_boxes; ++box) {
        copy_box(stage + kWeightBytes + box * kBoxBytes, &p.inputs, column,
                 tile.begin + box * kBoxRows, full);
      }
    }
  });
}

// An 8 × 8 matrix of 16-bit elements, of which lane l holds two of row l / 4, turned over.
__device__ __forceinline__ uint32_t transposed(uint32_t pair) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

template <Activation kActivation>
__device__ __forceinline__ float gated_value(float gate, float up) {
  return (kActivation == Activation::kSilu ? silu(gate) : gelu_tanh(gate)) * up;
}

template <int kTokens, Activation kActivation>
__device__ void store_gated(const WideProducts& p, const Tile& tile, int unit,
                            const float (&sums)[2][kTokens / 2]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % 4, quad = lane % 4;
  uint16_t* const out = p.packed + tile.begin * p.out_stride + unit * kBoxRows + warp * 16 +
                        (quad % 2 * 8 + quad / 2 * 4);
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    const auto value = [&](int i) {
      return gated_value<kActivation>(sums[0][4 * j + i], sums[1][4 * j + i]);
    };
    // Of token lane / 4: rows 2·quad and the next, of the first eight and of the others.
    const uint32_t first = transposed(pack_bfloat16(value(0), value(1)));
    const uint32_t second = transposed(pack_bfloat16(value(2), value(3)));
    // Even lanes take four of the first rows, odd ones four of the others.
    const bool odd = quad % 2 == 1;
    const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
    const int token = 8 * j + lane / 4;
    if (token < tile.count) {
      *reinterpret_cast<uint2*>(out + token * p.out_stride) =
          odd ? make_uint2(other, second) : make_uint2(first, other);
    }
  }
}

// One lane of each multiplying warp, when the warp is done with a slot.
template <bool kPair>
__device__ __forceinline__ void release(Shared& shared, int slot) {
  const uint32_t empty = shared_address(&shared.empty[slot]);
  arrive(empty);
  if constexpr (kPair) arrive_there(empty, cluster_rank() ^ 1);
}

template <int kTokens, bool kPair>
__device__ void multiply_tile(const WideProducts& p, Shared& shared, uint32_t stages,
                              const Tile& tile, Ring& ring) {
  const int group = threadIdx.x / kGroupThreads;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % 4;
  const int unit = tile.first + group * (p.gated ? 1 : 2);
  const bool active = unit < matrix_units(p);
  float sums[2][kTokens / 2] = {};
  int last = 0;
  for (int step = 0; step < p.steps; ++step, ring.advance()) {
    wait_barrier(shared_address(&shared.full[ring.slot()]), ring.parity());
    if constexpr (!kPair) publish_to_tensor_cores();  // inputs that ordinary copies have brought
    if (active) {
      const uint32_t stage = stages + ring.slot() * kStageBytes;
      const uint64_t x = tile_descriptor(stage + kWeightBytes);
      const uint64_t w = tile_descriptor(stage + group * 2 * kBoxBytes);
      begin_products();
#pragma unroll
      for (int k = 0; k < kTileColumns / 16; ++k) {
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          WarpgroupProduct<kTokens>::add(sums[block], w + block * (kBoxBytes >> 4) + 2 * k,
                                         x + 2 * k);
        }
      }
      commit_products();
      wait_for_products<1>();
    }
    if (step > 0 && lane == 0) release<kPair>(shared, last);
    last = ring.slot();
  }
  wait_for_products<0>();
  if (lane == 0) release<kPair>(shared, last);
  if (!active) return;
  if (p.gated) {
    if (p.activation == Activation::kSilu) {
      store_gated<kTokens, Activation::kSilu>(p, tile, unit, sums);
    } else {
      store_gated<kTokens, Activation::kGeluTanh>(p, tile, unit, sums);
    }
    return;
  }
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const int row = (unit + block) * kBoxRows + warp * 16 + lane / 4;
    float* const out = p.y + (tile.begin + lane % 4 * 2) * p.out_stride + row;
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int token = i / 4 * 8 + i % 2, below = i % 4 / 2 * 8;
      if (row + below < p.rows && token + lane % 4 * 2 < tile.count) {
        out[token * p.out_stride + below] = sums[block][i];
      }
    }
  }
}

template <bool kPair>
__device__ void multiply(const WideProducts& p, Shared& shared, uint32_t stages) {
  Ring ring;
  const auto run = [&](const Tile& tile) {
    if (tile.count <= 64) {
      multiply_tile<64, kPair>(p, shared, stages, tile, ring);
    } else if (tile.count <= 96) {
      multiply_tile<96, kPair>(p, shared, stages, tile, ring);
    } else if (tile.count <= 128) {
      multiply_tile<128, kPair>(p, shared, stages, tile, ring);
    } else if (tile.count <= 160) {
      multiply_tile<160, kPair>(p, shared, stages, tile, ring);
    } else {
      multiply_tile<192, kPair>(p, shared, stages, tile, ring);
    }
  };
  if constexpr (kPair) {
    for_each_pair_tile(p, cluster_rank(), run);
  } else {
    for_each_tile(p, shared, run);
  }
}

template <bool kPair>
__global__ void __launch_bounds__(kWideThreads, 1)
    wide_products_kernel(const __grid_constant__ WideProducts p) {
  extern __shared__ __align__(kBoxAlignment) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory + kStages * kStageBytes);
  const uint32_t stages = shared_address(memory);
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kStages; ++slot) {
      init_barrier(shared_address(&shared.full[slot]), kPair ? 1 : kGroupThreads + 1);
      init_barrier(shared_address(&shared.empty[slot]), (kPair ? 2 : 1) * kMultiplierWarps);
    }
    publish_barriers();
    prefetch_map(&p.weights);
    if (p.gated) prefetch_map(&p.up);
  }
  wait_for_inputs();
  if constexpr (kPair) {
    publish_to_copies();  // inputs of ordinary stores
    __syncthreads();
    sync_cluster();
  } else if (p.experts > 0) {
    count_tiles(p, shared);
  } else {
    __syncthreads();
  }
  if (threadIdx.x >= 2 * kGroupThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if constexpr (kPair) {
      if (threadIdx.x == 2 * kGroupThreads) bring_pair(p, shared, stages, cluster_rank());
      __syncwarp();
    } else {
      bring(p, shared, stages);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    multiply<kPair>(p, shared, stages);
  }
  if constexpr (kPair) {
    __syncthreads();
    sync_cluster();  // the other block may still write here
  }
}

bool runs_here() {
  cudaFuncAttributes attributes{};
  const bool found = cudaFuncGetAttributes(&attributes, wide_products_kernel<false>) == cudaSuccess;
  if (!found) cudaGetLastError();  // clears it
  return found;
}

WideProducts wide_products_of(const Products& products) {
  WideProducts p{};
  p.expert_rows = static_cast<int>(products.matrix_bytes / products.row_bytes);
  p.weights =
      make_tensor_map(products.weights, int64_t{p.expert_rows} * std::max(products.experts, 1),
                      products.cols, products.row_bytes / 2, kBoxRows);
  p.rows = products.rows;
  p.steps = ceil_divide(products.cols, kTileColumns);
  p.x = products.packed;
  p.x_stride = products.packed_stride;
  p.y = products.y;
  p.out_stride = products.y_stride;
  p.tokens = products.tokens;
  p.experts = products.experts;
  p.offsets = products.offsets;
  return p;
}

// Blocks go by pairs.
void launch_pairs(Stream& stream, void (*kernel)(WideProducts), int blocks, const WideProducts& p) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = 2;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kWideThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream.cuda().handle();
  config.attrs = attributes;
  config.numAttrs = stream.cuda().overlaps_kernels() ? 2 : 1;
  BRAID_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, p));
}

template <bool kPair>
void launch_wide(Stream& stream, const WideProducts& p) {
  const auto kernel = wide_products_kernel<kPair>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  BRAID_CUDA_CHECK(allowed);
  const int row_tiles = ceil_divide(ceil_divide(p.rows, kBoxRows), p.gated ? 2 : 4);
  const int most = stream.cuda().num_multiprocessors();
  if constexpr (kPair) {
    const int pairs = ceil_divide(p.tokens, 2 * kMostTokens);
    launch_pairs(stream, kernel, 2 * std::min(row_tiles * pairs, most / 2), p);
  } else {
    // Tiles of tokens that there can be at most: full ones, and one that is not for each expert.
    const int64_t token_tiles = p.tokens / kMostTokens + std::min(std::max(p.experts, 1), p.tokens);
    launch(stream, kernel,
           dim3(static_cast<unsigned>(std::min<int64_t>(token_tiles * row_tiles, most))),
           dim3(kWideThreads), kSharedBytes, p);
  }
}

}  // namespace

bool wide_products_can(Stream& stream, const Products& products) {
  static const bool can = runs_here();
  return can && stream.cuda().overlaps_kernels() && products.format == FormatId::kBF16 &&
         !products.tiles && products.packed != nullptr && products.experts <= kMostExperts &&
         products.row_bytes % 16 == 0 && products.packed_stride % 8 == 0 &&
         products.matrix_bytes % products.row_bytes == 0 &&
         reinterpret_cast<uintptr_t>(products.packed) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(products.weights) % 16 == 0;
}

void wide_products(Stream& stream, const Products& products) {
  launch_wide<false>(stream, wide_products_of(products));
}

void wide_gated_products(Stream& stream, const Products& products, const void* up,
                         Activation activation, const int32_t* x_rows, uint16_t* packed,
                         int64_t packed_stride) {
  BRAID_CHECK(products.rows % kBoxRows == 0, "gated products of {} rows", products.rows);
  WideProducts p = wide_products_of(products);
  p.gated = true;
  p.activation = activation;
  p.up = up == nullptr ? p.weights
                       : make_tensor_map(up, int64_t{p.expert_rows} * std::max(p.experts, 1),
                                         products.cols, products.row_bytes / 2, kBoxRows);
  p.up_row = up == nullptr ? products.rows : 0;
  p.x_rows = x_rows;
  p.packed = packed;
  p.out_stride = packed_stride;
  if (p.experts > 0) return launch_wide<false>(stream, p);
  p.inputs = make_tensor_map(p.x, p.tokens, products.cols, p.x_stride, kBoxRows);
  launch_wide<true>(stream, p);
}

}  // namespace braid::cuda

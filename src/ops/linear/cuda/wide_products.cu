// Compiled for sm_90a alone.

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/linear/cuda/ring.cuh"
#include "ops/linear/cuda/sum_before.cuh"
#include "ops/linear/cuda/tensor_core.cuh"
#include "ops/linear/cuda/tiles.cuh"
#include "ops/linear/cuda/turned_rows.cuh"
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
constexpr int kMostExperts = 512, kMostTokenTiles = 65535;
// Alignment of the stages, too, which a kernel without other shared memory gets by itself.
constexpr int kBoxAlignment = 1024;

struct Tile {
  int expert, begin, count;  // tokens; count 0: there are no more tiles
  int first;                 // unit: 64 rows, or 64 of gate and 64 of up
};

struct Shared {
  uint64_t full[kStages], empty[kStages];
  // Of the group that copies for the others, in turn. It is ahead of them by kStages at most.
  Tile tiles[2 * kStages];
  // Of the experts in the order in which they are taken: who, and the tiles of tokens before it.
  uint16_t order[kMostExperts], first_tile[kMostExperts + 1];
  int warp_tiles[kWideThreads / kWarp];
};
constexpr int kSharedBytes = kStages * kStageBytes + static_cast<int>(sizeof(Shared));
static_assert(kSharedBytes <= 227 << 10);

__device__ __forceinline__ int tiles_of(int tokens) {
  return (tokens + kMostTokens - 1) / kMostTokens;
}
// Tiles of an expert are of one size.
__device__ __forceinline__ int tile_tokens(int tokens) {
  const int tiles = tiles_of(tokens);
  return tiles > 0 ? (tokens + tiles - 1) / tiles : 0;
}

// Units of a full tile, and those of a matrix.
__device__ __forceinline__ int tile_units(const WideProducts& p) { return p.gated ? 2 : 4; }
__device__ __forceinline__ int matrix_units(const WideProducts& p) { return p.rows / kBoxRows; }

// Orders experts by the size of their tiles, large ones first; all threads call it. keys: room for
// one of each expert.
__device__ void order_experts(const WideProducts& p, Shared& shared, int* keys) {
  constexpr int kEach = (kMostExperts + kWideThreads - 1) / kWideThreads;
  const int compared = (p.experts + 3) / 4 * 4;
  int tokens[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = static_cast<int>(threadIdx.x) + i * kWideThreads;
    tokens[i] = e < p.experts ? p.offsets[e + 1] - p.offsets[e] : 0;
    // Different for all experts.
    if (e < compared) {
      keys[e] = e < p.experts ? tile_tokens(tokens[i]) * kMostExperts + (kMostExperts - 1 - e) : -1;
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = static_cast<int>(threadIdx.x) + i * kWideThreads;
    if (e >= p.experts) break;
    const int own = keys[e];
    int place = 0;
#pragma unroll 4
    for (int other = 0; other < compared; other += 4) {
      const int4 four = *reinterpret_cast<const int4*>(keys + other);
      place += (four.x > own) + (four.y > own) + (four.z > own) + (four.w > own);
    }
    shared.order[place] = static_cast<uint16_t>(e);
    shared.first_tile[place] = static_cast<uint16_t>(tiles_of(tokens[i]));
  }
  __syncthreads();
}

// first_tile becomes the sum of those in front; all threads call it.
__device__ void add_up_tiles(const WideProducts& p, Shared& shared) {
  constexpr int kEach = (kMostExperts + kWideThreads - 1) / kWideThreads;
  const int first = min(static_cast<int>(threadIdx.x) * kEach, p.experts);
  const int last = min(first + kEach, p.experts);
  int own[kEach] = {}, sum = 0, all = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (first + i < last) own[i] = shared.first_tile[first + i];
    sum += own[i];
  }
  int before = sum_before<kWideThreads>(sum, shared.warp_tiles, all);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (first + i < last) shared.first_tile[first + i] = static_cast<uint16_t>(before);
    before += own[i];
  }
  if (threadIdx.x == 0) shared.first_tile[p.experts] = static_cast<uint16_t>(all);
  __syncthreads();
}

// Calls run(tile) for this block's tiles: full ones of all experts first, then those with the last
// rows of matrices that do not fill one; of either, those with many tokens first. Blocks take them
// in turn, forwards and backwards, so that all get about as much.
template <typename Run>
__device__ __forceinline__ void for_each_tile(const WideProducts& p, const Shared& shared,
                                              const Run& run) {
  const int total = shared.first_tile[p.experts], blocks = static_cast<int>(gridDim.x);
  const int each = tile_units(p), full = matrix_units(p) / each;
  const int partial = matrix_units(p) % each > 0 ? 1 : 0;
  const int items = total * (full + partial);
  bool backwards = false;
  for (int round = 0; round < items; round += blocks) {
    const int block = static_cast<int>(blockIdx.x);
    const int i = round + (backwards ? blocks - 1 - block : block);
    backwards = !backwards;
    if (i >= items) continue;
    int index, row_tile;
    if (i < total * full) {
      index = i / full;
      row_tile = i - index * full;
    } else {
      index = i - total * full;
      row_tile = full;
    }
    int place = 0, high = p.experts;  // first_tile[place] <= index < first_tile[high]
    while (high - place > 1) {
      const int middle = (place + high) / 2;
      (shared.first_tile[middle] <= index ? place : high) = middle;
    }
    const int expert = shared.order[place];
    const int begin = p.offsets[expert], end = p.offsets[expert + 1];
    const int share = tile_tokens(end - begin);
    const int first = begin + (index - shared.first_tile[place]) * share;
    if (first < end) run(Tile{expert, first, min(share, end - first), row_tile * each});
  }
}

__device__ void bring(const WideProducts& p, Shared& shared, uint32_t stages) {
  const int thread = threadIdx.x % kGroupThreads;
  const int piece = thread % 8;
  constexpr int kEach = kMostTokens / (kGroupThreads / 8);
  Ring ring(kStages);
  int next_tile = 0;
  const auto pass_on = [&](const Tile& tile) {
    if (thread == 0) shared.tiles[next_tile] = tile;
    next_tile = (next_tile + 1) % (2 * kStages);
  };
  for_each_tile(p, shared, [&](const Tile& tile) {
    pass_on(tile);
    uint32_t from[kEach];  // pieces of 16 bytes
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int token = min(thread / 8 + i * (kGroupThreads / 8), tile.count - 1) + tile.begin;
      const int row = p.x_rows != nullptr ? p.x_rows[token] : token;
      from[i] = static_cast<uint32_t>(row) * static_cast<uint32_t>(p.x_stride / 8) + piece;
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
          const int row = tile.expert * p.expert_rows + (up ? p.up_row : 0) + unit * kBoxRows;
          stream_box(stage + box * kBoxBytes, up ? &p.up : &p.weights, column, row, full);
        }
      }
      const uint4* const x = reinterpret_cast<const uint4*>(p.x) + step * (kTileColumns / 8);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int token = thread / 8 + i * (kGroupThreads / 8);
        if (token < tile.count) {
          copy16_async(stage + kWeightBytes + place(token, piece), x + from[i], true);
        }
      }
      arrive_after_copies(full);
    }
  });
  // A step without copies, for the end.
  wait_barrier(shared_address(&shared.empty[ring.slot()]), ring.parity() ^ 1);
  pass_on(Tile{});
  if (thread == 0) arrive(shared_address(&shared.full[ring.slot()]));
  arrive(shared_address(&shared.full[ring.slot()]));
  wait_for_copies<0>();
}

// f(gate) · up with f(x) = x / (1 + 2^(x · (slope + cubic · x²))): silu or gelu_tanh. A few
// instructions, since a tile has thousands of them in a row.
struct GatedValue {
  float slope, cubic;

  __device__ explicit GatedValue(Activation activation) {
    constexpr float kLog2E = 1.4426950409f, kTwoRootTwoOverPi = 1.5957691216f;
    const bool is_silu = activation == Activation::kSilu;
    slope = is_silu ? -kLog2E : -kLog2E * kTwoRootTwoOverPi;
    cubic = is_silu ? 0 : slope * 0.044715f;
  }
  __device__ __forceinline__ float operator()(float gate, float up) const {
    // 0 · x² is not a number if x² is infinite.
    const float square = fminf(gate * gate, 3e38f);
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(gate * fmaf(cubic, square, slope)));
    return __fdividef(gate, 1 + power) * up;
  }
};

template <int kTokens>
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
    publish_to_tensor_cores();  // inputs, which ordinary copies have brought
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
    if (step > 0 && lane == 0) arrive(shared_address(&shared.empty[last]));
    last = ring.slot();
  }
  wait_for_products<0>();
  if (lane == 0) arrive(shared_address(&shared.empty[last]));
  if (!active) return;
  uint16_t* const out = p.out + tile.begin * p.out_stride + unit * kBoxRows + warp * 16;
  if (p.gated) {
    const GatedValue gated(p.activation);
    store_turned<kTokens>(out, p.out_stride, tile.count,
                          [&](int i) { return gated(sums[0][i], sums[1][i]); });
    return;
  }
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    if (unit + block < matrix_units(p)) {
      store_turned<kTokens>(out + block * kBoxRows, p.out_stride, tile.count,
                            [&](int i) { return sums[block][i]; });
    }
  }
}

__device__ void multiply(const WideProducts& p, Shared& shared, uint32_t stages) {
  Ring ring(kStages);
  for (int next = 0;; next = (next + 1) % (2 * kStages)) {
    wait_barrier(shared_address(&shared.full[ring.slot()]), ring.parity());
    const Tile tile = shared.tiles[next];
    if (tile.count == 0) return;
    if (tile.count <= 64) {
      multiply_tile<64>(p, shared, stages, tile, ring);
    } else if (tile.count <= 96) {
      multiply_tile<96>(p, shared, stages, tile, ring);
    } else if (tile.count <= 128) {
      multiply_tile<128>(p, shared, stages, tile, ring);
    } else if (tile.count <= 160) {
      multiply_tile<160>(p, shared, stages, tile, ring);
    } else {
      multiply_tile<192>(p, shared, stages, tile, ring);
    }
  }
}

__global__ void __launch_bounds__(kWideThreads, 1)
    wide_products_kernel(const __grid_constant__ WideProducts p) {
  extern __shared__ __align__(kBoxAlignment) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory + kStages * kStageBytes);
  const uint32_t stages = shared_address(memory);
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kStages; ++slot) {
      init_barrier(shared_address(&shared.full[slot]), kGroupThreads + 1);
      init_barrier(shared_address(&shared.empty[slot]), kMultiplierWarps);
    }
    publish_barriers();
    prefetch_map(&p.weights);
    if (p.gated) prefetch_map(&p.up);
  }
  wait_for_inputs();
  order_experts(p, shared, reinterpret_cast<int*>(memory));
  publish_to_tensor_cores();  // as to the copy engine, which takes that memory next
  add_up_tiles(p, shared);
  if (threadIdx.x >= 2 * kGroupThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    bring(p, shared, stages);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    multiply(p, shared, stages);
  }
}

bool runs_here() {
  cudaFuncAttributes attributes{};
  const bool found = cudaFuncGetAttributes(&attributes, wide_products_kernel) == cudaSuccess;
  if (!found) cudaGetLastError();  // clears it
  return found;
}

WideProducts wide_products_of(const Products& products) {
  WideProducts p{};
  p.expert_rows = static_cast<int>(products.matrix_bytes / products.row_bytes);
  p.weights = make_tensor_map(products.weights, int64_t{p.expert_rows} * products.experts,
                              products.cols, products.row_bytes / 2, kBoxRows);
  p.rows = products.rows;
  p.steps = ceil_divide(products.cols, kTileColumns);
  p.x = products.packed;
  p.x_stride = products.packed_stride;
  p.tokens = products.tokens;
  p.experts = products.experts;
  p.offsets = products.offsets;
  return p;
}

void launch_wide(Stream& stream, const WideProducts& p) {
  static const cudaError_t allowed = cudaFuncSetAttribute(
      wide_products_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  BRAID_CUDA_CHECK(allowed);
  // Tiles of tokens that there can be at most: full ones, and one that is not for each expert.
  const int token_tiles = p.tokens / kMostTokens + std::min(p.experts, p.tokens);
  BRAID_CHECK(token_tiles <= kMostTokenTiles, "{} tiles of tokens", token_tiles);
  const int row_tiles = ceil_divide(p.rows / kBoxRows, p.gated ? 2 : 4);
  const int blocks = static_cast<int>(
      std::min<int64_t>(int64_t{token_tiles} * row_tiles, stream.cuda().num_multiprocessors()));
  launch(stream, wide_products_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kWideThreads),
         kSharedBytes, p);
}

}  // namespace

bool wide_products_can(Stream& stream, const Products& products) {
  static const bool can = runs_here();
  return can && stream.cuda().overlaps_kernels() && products.format == FormatId::kBF16 &&
         !products.tiles && products.packed != nullptr && products.experts > 0 &&
         products.experts <= kMostExperts && products.rows % kBoxRows == 0 &&
         products.row_bytes % 16 == 0 && products.packed_stride % 8 == 0 &&
         products.matrix_bytes % products.row_bytes == 0 &&
         reinterpret_cast<uintptr_t>(products.packed) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(products.weights) % 16 == 0;
}

void wide_products(Stream& stream, const Products& products, Rows<uint16_t> out) {
  WideProducts p = wide_products_of(products);
  p.out = out.data;
  p.out_stride = out.stride;
  launch_wide(stream, p);
}

void wide_gated_products(Stream& stream, const Products& products, const void* up,
                         Activation activation, const int32_t* x_rows, Rows<uint16_t> out) {
  BRAID_CHECK(products.rows % kBoxRows == 0, "gated products of {} rows", products.rows);
  WideProducts p = wide_products_of(products);
  p.gated = true;
  p.activation = activation;
  p.up = up == nullptr ? p.weights
                       : make_tensor_map(up, int64_t{p.expert_rows} * p.experts, products.cols,
                                         products.row_bytes / 2, kBoxRows);
  p.up_row = up == nullptr ? products.rows : 0;
  p.x_rows = x_rows;
  p.out = out.data;
  p.out_stride = out.stride;
  launch_wide(stream, p);
}

}  // namespace braid::cuda

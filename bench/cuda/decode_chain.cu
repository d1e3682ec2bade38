// How near to the memory a chain of small matrix products gets: the shape of a decode step on a
// GPU. Each kernel streams the bfloat16 weights of one layer once for up to eight tokens; the chain
// runs as a CUDA graph, with plain or programmatic edges.
//
//   nvcc -std=c++17 -O3 -arch=sm_90 -cudart static -o decode_chain decode_chain.cu &&
//   ./decode_chain
//
// Prints, per shape and kernel variant, the error against a plain kernel, the time of a link of
// the chain, and the rate at which weights are read beside that of a plain streaming read.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                       \
  do {                                                                                    \
    const cudaError_t error = (call);                                                     \
    if (error != cudaSuccess) {                                                           \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error)); \
      std::exit(1);                                                                       \
    }                                                                                     \
  } while (0)

namespace {

constexpr int kTokens = 8;

struct Task {
  const __nv_bfloat16* weights;  // [rows, cols]
  const __nv_bfloat16* x;        // [kTokens, cols]
  float* y;                      // [kTokens, rows]
  int rows;
  int cols;
};

__device__ uint4 load_stream(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ uint4 load_shared_by_warps(const void* p) { return __ldg(static_cast<const uint4*>(p)); }

// c[16 rows, 8 tokens] += a[16, 16] · b[16, 8]
__device__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                    uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A block computes kTiles · kRowWarps tiles of 16 rows; its warps share them out, kKWarps of them
// splitting the columns. A thread reads 16 bytes of a row at a time: within a dot product the order
// of columns is free as long as weights and inputs agree on it, so they are handed to the tensor
// cores as they lie.
template <int kTiles, int kRowWarps, int kKWarps, int kUnroll, bool kEarly>
__global__ void __launch_bounds__(32 * kRowWarps * kKWarps) few_tokens(Task task) {
  constexpr int kChunk = 32;  // columns per thread quad and load
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row_warp = warp % kRowWarps, k_warp = warp / kRowWarps;
  const int group = lane / 4, quad = lane % 4;
  const int first_row = (blockIdx.x * kRowWarps + row_warp) * kTiles * 16;
  const int64_t cols = task.cols;

  cudaTriggerProgrammaticLaunchCompletion();
  const __nv_bfloat16* w[kTiles][2];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = min(first_row + t * 16 + h * 8 + group, task.rows - 1);
      w[t][h] = task.weights + row * cols + quad * 8;
    }
  }
  const __nv_bfloat16* x = task.x + group * cols + quad * 8;

  const int chunks = task.cols / kChunk;
  float acc[kTiles][4] = {};
  uint4 a[kUnroll][kTiles][2];
  int chunk = k_warp * kUnroll;
  const auto load_weights = [&](int at) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          a[u][t][h] =
              at + u < chunks ? load_stream(w[t][h] + (at + u) * kChunk) : make_uint4(0, 0, 0, 0);
        }
      }
    }
  };
  if (kEarly) load_weights(chunk);
  cudaGridDependencySynchronize();
  if (!kEarly) load_weights(chunk);
  while (chunk < chunks) {
    uint4 b[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      b[u] = chunk + u < chunks ? load_shared_by_warps(x + (chunk + u) * kChunk)
                                : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        mma(acc[t], a[u][t][0].x, a[u][t][1].x, a[u][t][0].y, a[u][t][1].y, b[u].x, b[u].y);
        mma(acc[t], a[u][t][0].z, a[u][t][1].z, a[u][t][0].w, a[u][t][1].w, b[u].z, b[u].w);
      }
    }
    chunk += kKWarps * kUnroll;
    load_weights(chunk);
  }

  // Sums of the warps that split the columns, in their order.
  __shared__ float partial[kKWarps][kRowWarps][kTiles][32][4];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) partial[k_warp][row_warp][t][lane][i] = acc[t][i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRowWarps * kTiles * 128; i += blockDim.x) {
    const int e = i % 4, l = i / 4 % 32, t = i / 128 % kTiles, r = i / (128 * kTiles);
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kKWarps; ++k) sum += partial[k][r][t][l][e];
    const int row = ((blockIdx.x * kRowWarps + r) * kTiles + t) * 16 + l / 4 + (e / 2) * 8;
    const int token = l % 4 * 2 + e % 2;
    if (row < task.rows) task.y[static_cast<int64_t>(token) * task.rows + row] = sum;
  }
}

// The second design: one block a multiprocessor. A warp brings weights into a ring in shared memory
// by bulk copies, before it waits for the previous link; eight warps multiply, splitting the 256
// columns of a unit. Units (32 rows, 256 columns) are dealt out evenly in order; where a block ends
// amid the columns of its rows, the last of those concerned adds the parts up, in order of blocks.
constexpr int kUnitRows = 32, kUnitCols = 256, kStages = 5;
constexpr int kStageStride = kUnitCols * 2 + 64;  // bytes of a row: neighbours in other banks
constexpr int kStageBytes = kUnitRows * kStageStride;
constexpr int kMultiplyWarps = 8;
constexpr int kRingThreads = 32 * (kMultiplyWarps + 1);
constexpr int kRingBytes = kStages * kStageBytes + 2 * kStages * 8;

// A unit: 256 columns of 32 rows. Divided out once, then counted on.
struct Unit {
  int tile, chunk, chunks;
  __device__ Unit(int64_t unit, int chunks)
      : tile(static_cast<int>(unit / chunks)),
        chunk(static_cast<int>(unit - static_cast<int64_t>(tile) * chunks)),
        chunks(chunks) {}
  __device__ void next() {
    if (++chunk == chunks) {
      chunk = 0;
      ++tile;
    }
  }
};

struct RingState {
  float* parts;   // [blocks][2][kTokens * kUnitRows]
  int* arrivals;  // [tiles], zero between launches
};

__device__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ void barrier_init(uint64_t* b, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count));
}
__device__ void barrier_arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ void barrier_expect(uint64_t* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(b)),
               "r"(bytes)
               : "memory");
}
__device__ void barrier_wait(uint64_t* b, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra done;\n"
      "bra again;\ndone:\n}" ::"r"(shared_address(b)),
      "r"(parity)
      : "memory");
}
__device__ void bulk_copy(void* to, const void* from, int bytes, uint64_t* b) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(b))
      : "memory");
}

// After a tile's last unit or the block's: adds up the warps' sums, and, if other blocks hold
// shares of the tile, those.
__device__ void finish_tile(const Task& task, const RingState& state, int64_t tile, int64_t begin,
                            int64_t end, int64_t units, int chunks, float (&acc)[2][4],
                            float (&sums)[kMultiplyWarps][kTokens * kUnitRows], int& last) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = lane / 4, quad = lane % 4;
  // The tile's columns, or this block's share of them, are through.
#pragma unroll
  for (int t = 0; t < 2; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = quad * 2 + i % 2, row = 16 * t + group + i / 2 * 8;
      sums[warp][token * kUnitRows + row] = acc[t][i];
      acc[t][i] = 0;
    }
  }
  asm volatile("bar.sync 1, 256;" ::: "memory");
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kMultiplyWarps; ++w) sum += sums[w][threadIdx.x];
  const int64_t tile_begin = tile * chunks, tile_end = tile_begin + chunks;
  const int token = threadIdx.x / kUnitRows, row = threadIdx.x % kUnitRows;
  float* y = task.y + static_cast<int64_t>(token) * task.rows + tile * kUnitRows + row;
  if (begin <= tile_begin && tile_end <= end) {
    *y = sum;
  } else {
    const int slot = begin > tile_begin ? 0 : 1;
    __stcg(state.parts + (blockIdx.x * 2 + slot) * 256 + threadIdx.x, sum);
    __threadfence();
    asm volatile("bar.sync 1, 256;" ::: "memory");
    // Blocks that hold a share of this tile.
    int64_t first_block = tile_begin * gridDim.x / units;
    while (units * (first_block + 1) / gridDim.x <= tile_begin) ++first_block;
    int64_t end_block = first_block;
    while (end_block < gridDim.x && units * end_block / gridDim.x < tile_end) ++end_block;
    if (threadIdx.x == 0) {
      last = atomicAdd(state.arrivals + tile, 1) == static_cast<int>(end_block - first_block) - 1;
      if (last) state.arrivals[tile] = 0;
      __threadfence();
    }
    asm volatile("bar.sync 1, 256;" ::: "memory");
    if (last) {
      float total = 0;
      for (int64_t block = first_block; block < end_block; ++block) {
        const int part = units * block / gridDim.x > tile_begin ? 0 : 1;
        total += __ldcg(state.parts + (block * 2 + part) * 256 + threadIdx.x);
      }
      *y = total;
    }
  }
  asm volatile("bar.sync 1, 256;" ::: "memory");
}

template <bool kEarly>
__global__ void __launch_bounds__(kRingThreads, 1) ring(Task task, RingState state) {
  extern __shared__ __align__(128) unsigned char memory[];
  uint64_t* full = reinterpret_cast<uint64_t*>(memory + kStages * kStageBytes);
  uint64_t* empty = full + kStages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunks = (task.cols + kUnitCols - 1) / kUnitCols;
  const int64_t units = static_cast<int64_t>(task.rows / kUnitRows) * chunks;
  const int64_t begin = units * blockIdx.x / gridDim.x, end = units * (blockIdx.x + 1) / gridDim.x;

  cudaTriggerProgrammaticLaunchCompletion();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, kMultiplyWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (!kEarly) cudaGridDependencySynchronize();

  if (warp == kMultiplyWarps) {
    Unit unit(begin, chunks);
    for (int n = 0; n < end - begin; ++n, unit.next()) {
      const int stage = n % kStages;
      if (n >= kStages) barrier_wait(empty + stage, (n / kStages - 1) & 1);
      const int64_t row = static_cast<int64_t>(unit.tile) * kUnitRows + lane;
      const int col = unit.chunk * kUnitCols;
      const int width = min(kUnitCols, task.cols - col);
      if (lane == 0) barrier_expect(full + stage, kUnitRows * width * 2);
      __syncwarp();
      bulk_copy(memory + stage * kStageBytes + lane * kStageStride,
                task.weights + row * task.cols + col, width * 2, full + stage);
    }
    return;
  }

  const int group = lane / 4, quad = lane % 4;
  __shared__ float sums[kMultiplyWarps][kTokens * kUnitRows];
  __shared__ int last;
  if (kEarly) cudaGridDependencySynchronize();
  float acc[2][4] = {};
  const __nv_bfloat16* x = task.x + static_cast<int64_t>(group) * task.cols + quad * 8;
  const auto inputs_of = [&](const Unit& unit) {
    const int col = unit.chunk * kUnitCols + warp * 32;
    return col < task.cols ? load_shared_by_warps(x + col) : make_uint4(0, 0, 0, 0);
  };
  Unit unit(begin, chunks);
  uint4 next_b = inputs_of(unit);
  for (int n = 0; n < end - begin; ++n) {
    const int stage = n % kStages;
    const int col = unit.chunk * kUnitCols + warp * 32;
    const Unit present = unit;
    unit.next();
    const uint4 b = next_b;
    next_b = inputs_of(unit);
    barrier_wait(full + stage, (n / kStages) & 1);
    if (col < task.cols) {
      const unsigned char* at =
          memory + stage * kStageBytes + group * kStageStride + warp * 64 + quad * 16;
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const uint4 low = *reinterpret_cast<const uint4*>(at + (16 * t) * kStageStride);
        const uint4 high = *reinterpret_cast<const uint4*>(at + (16 * t + 8) * kStageStride);
        mma(acc[t], low.x, high.x, low.y, high.y, b.x, b.y);
        mma(acc[t], low.z, high.z, low.w, high.w, b.z, b.w);
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + stage);
    if (present.chunk + 1 == chunks || n + 1 == end - begin) {
      finish_tile(task, state, present.tile, begin, end, units, chunks, acc, sums, last);
    }
  }
}

// The same, but each thread copies what it will multiply itself, 16 bytes at a time, into a ring of
// its own: no barriers.
constexpr int kOwnStages = 6;
constexpr int kOwnThreads = 32 * kMultiplyWarps;
constexpr int kOwnBytes = kOwnStages * 4 * kOwnThreads * 16;

template <bool kEarly>
__global__ void __launch_bounds__(kOwnThreads, 1) own_ring(Task task, RingState state) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ float sums[kMultiplyWarps][kTokens * kUnitRows];
  __shared__ int last;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = lane / 4, quad = lane % 4;
  const int chunks = (task.cols + kUnitCols - 1) / kUnitCols;
  const int64_t units = static_cast<int64_t>(task.rows / kUnitRows) * chunks;
  const int64_t begin = units * blockIdx.x / gridDim.x, end = units * (blockIdx.x + 1) / gridDim.x;
  const auto slot = [&](int stage, int piece) {
    return memory + ((stage * 4 + piece) * kOwnThreads + threadIdx.x) * 16;
  };
  Unit ahead(begin, chunks);
  int64_t left_to_copy = end - begin;
  const auto copy = [&](int stage) {
    const int col = ahead.chunk * kUnitCols + warp * 32;
    if (left_to_copy-- > 0 && col < task.cols) {
      const __nv_bfloat16* from =
          task.weights + (static_cast<int64_t>(ahead.tile) * kUnitRows + group) * task.cols + col +
          quad * 8;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(
                         shared_address(slot(stage, i))),
                     "l"(from + static_cast<int64_t>(i) * 8 * task.cols)
                     : "memory");
      }
    }
    ahead.next();
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

  cudaTriggerProgrammaticLaunchCompletion();
  if (!kEarly) cudaGridDependencySynchronize();
  for (int i = 0; i < kOwnStages - 1; ++i) copy(i);
  if (kEarly) cudaGridDependencySynchronize();
  float acc[2][4] = {};
  int stage = 0;
  const __nv_bfloat16* x = task.x + static_cast<int64_t>(group) * task.cols + quad * 8;
  const auto inputs_of = [&](const Unit& unit) {
    const int col = unit.chunk * kUnitCols + warp * 32;
    return col < task.cols ? load_shared_by_warps(x + col) : make_uint4(0, 0, 0, 0);
  };
  Unit unit(begin, chunks);
  uint4 next_b = inputs_of(unit);
  for (int n = 0; n < end - begin; ++n) {
    const int col = unit.chunk * kUnitCols + warp * 32;
    const Unit present = unit;
    unit.next();
    const uint4 b = next_b;
    next_b = inputs_of(unit);
    copy(stage == 0 ? kOwnStages - 1 : stage - 1);
    asm volatile("cp.async.wait_group %0;" ::"n"(kOwnStages - 1) : "memory");
    if (col < task.cols) {
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const uint4 low = *reinterpret_cast<const uint4*>(slot(stage, 2 * t));
        const uint4 high = *reinterpret_cast<const uint4*>(slot(stage, 2 * t + 1));
        mma(acc[t], low.x, high.x, low.y, high.y, b.x, b.y);
        mma(acc[t], low.z, high.z, low.w, high.w, b.z, b.w);
      }
    }
    stage = stage + 1 == kOwnStages ? 0 : stage + 1;
    if (present.chunk + 1 == chunks || n + 1 == end - begin) {
      finish_tile(task, state, present.tile, begin, end, units, chunks, acc, sums, last);
    }
  }
}

RingState ring_state;
int num_multiprocessors;

template <void (*kKernel)(Task, RingState), int kThreads, int kBytes>
void launch_ring(const Task& task, bool programmatic, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(num_multiprocessors);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = programmatic ? 1 : 0;
  CHECK(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  CHECK(cudaLaunchKernelEx(&config, kKernel, task, ring_state));
}

__global__ void plain_product(Task task) {
  const int row = blockIdx.x, token = threadIdx.x;
  if (token >= kTokens) return;
  float sum = 0;
  for (int c = 0; c < task.cols; ++c) {
    sum += __bfloat162float(task.weights[static_cast<int64_t>(row) * task.cols + c]) *
           __bfloat162float(task.x[static_cast<int64_t>(token) * task.cols + c]);
  }
  task.y[static_cast<int64_t>(token) * task.rows + row] = sum;
}

__global__ void fill(__nv_bfloat16* p, int64_t n, uint32_t seed, float scale) {
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ static_cast<uint32_t>(i >> 32) ^ seed;
    h ^= h >> 16;
    h *= 0x85ebca6b;
    h ^= h >> 13;
    h *= 0xc2b2ae35;
    h ^= h >> 16;
    p[i] = __float2bfloat16((static_cast<float>(h) * 0x1p-31f - 1) * scale);
  }
}

__global__ void read_all(const uint4* p, int64_t n, uint32_t* sink) {
  uint32_t sum = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  for (; i + 3 * step < n; i += 4 * step) {
    const uint4 a = load_stream(p + i), b = load_stream(p + i + step),
                c = load_stream(p + i + 2 * step), d = load_stream(p + i + 3 * step);
    sum += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^
           d.w;
  }
  if (sum == 0x12345678) *sink = sum;
}

struct Variant {
  const char* name;
  int rows_per_block, threads;
  void (*kernel)(Task);
  void (*launch)(const Task&, bool, cudaStream_t) = nullptr;  // instead of kernel
};
#define VARIANT(tiles, row_warps, k_warps, unroll, early)                                       \
  Variant {                                                                                     \
#tiles "x16 rows, " #row_warps "x" #k_warps " warps, unroll " #unroll ", early " #early,    \
        16 * tiles* row_warps, 32 * row_warps* k_warps, few_tokens < tiles, row_warps, k_warps, \
        unroll, early>                                                                          \
  }
const Variant kVariants[] = {
    {"own rings, filled before the wait", 0, 0, nullptr,
     launch_ring<own_ring<true>, kOwnThreads, kOwnBytes>},
    {"own rings, filled after the wait", 0, 0, nullptr,
     launch_ring<own_ring<false>, kOwnThreads, kOwnBytes>},
    {"bulk ring, filled before the wait", 0, 0, nullptr,
     launch_ring<ring<true>, kRingThreads, kRingBytes>},
    {"bulk ring, filled after the wait", 0, 0, nullptr,
     launch_ring<ring<false>, kRingThreads, kRingBytes>},

    VARIANT(1, 1, 4, 4, true),
    VARIANT(1, 1, 8, 4, true),
    VARIANT(1, 1, 8, 4, false),
    VARIANT(1, 1, 8, 8, true),
    VARIANT(1, 1, 16, 4, true),
    VARIANT(1, 2, 8, 4, true),
    VARIANT(2, 1, 8, 4, true),
    VARIANT(2, 1, 4, 4, true),
    VARIANT(2, 2, 4, 4, true),
    VARIANT(1, 4, 4, 4, true),
};

float time_ms(cudaGraphExec_t graph, cudaStream_t stream) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 12; ++i) {
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaGraphLaunch(graph, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 2) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void launch(const Variant& variant, const Task& task, bool programmatic, cudaStream_t stream) {
  if (variant.launch != nullptr) return variant.launch(task, programmatic, stream);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((task.rows + variant.rows_per_block - 1) / variant.rows_per_block);
  config.blockDim = dim3(variant.threads);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = programmatic ? 1 : 0;
  CHECK(cudaLaunchKernelEx(&config, variant.kernel, task));
}

}  // namespace

int main() {
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  const int64_t kBytes = int64_t{4} << 30;
  __nv_bfloat16 *weights, *x;
  float *y, *reference;
  uint32_t* sink;
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  num_multiprocessors = properties.multiProcessorCount;
  CHECK(cudaMalloc(&ring_state.parts, num_multiprocessors * 2 * 256 * sizeof(float)));
  CHECK(cudaMalloc(&ring_state.arrivals, (1 << 20) * sizeof(int)));
  CHECK(cudaMemset(ring_state.arrivals, 0, (1 << 20) * sizeof(int)));
  CHECK(cudaMalloc(&weights, kBytes));
  CHECK(cudaMalloc(&x, kTokens * 65536 * 2));
  CHECK(cudaMalloc(&y, kTokens * 300000 * 4));
  CHECK(cudaMalloc(&reference, kTokens * 300000 * 4));
  CHECK(cudaMalloc(&sink, 4));
  fill<<<1024, 256, 0, stream>>>(weights, kBytes / 2, 1, 0.05f);
  fill<<<1024, 256, 0, stream>>>(x, kTokens * 65536, 2, 1.0f);
  CHECK(cudaStreamSynchronize(stream));

  float best_read = 1e30f;
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int i = 0; i < 8; ++i) {
    CHECK(cudaEventRecord(begin, stream));
    read_all<<<132 * 2, 512, 0, stream>>>(reinterpret_cast<uint4*>(weights), kBytes / 16, sink);
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    best_read = std::min(best_read, ms);
  }
  const double roof = static_cast<double>(kBytes) / best_read / 1e9;
  std::printf("streaming read: %.2f TB/s\n", roof);

  const int shapes[][2] = {{8192, 2816}, {2816, 4096},  {4224, 2816},  {2816, 2112},  {8192, 3840},
                           {3840, 4096}, {30720, 3840}, {3840, 15360}, {262144, 2816}};
  for (const auto& shape : shapes) {
    const int rows = shape[0], cols = shape[1];
    const int64_t bytes = static_cast<int64_t>(rows) * cols * 2;
    const int links = static_cast<int>(std::clamp<int64_t>(kBytes / bytes, 2, 96));
    std::printf("\n%d x %d, %.1f MiB, chain of %d\n", rows, cols, bytes / 1048576.0, links);
    const Task first{weights, x, reference, rows, cols};
    plain_product<<<rows, 32, 0, stream>>>(first);
    CHECK(cudaGetLastError());
    std::vector<float> expected(static_cast<size_t>(kTokens) * rows), actual(expected.size());
    CHECK(cudaMemcpyAsync(expected.data(), reference, expected.size() * 4, cudaMemcpyDefault,
                          stream));
    CHECK(cudaStreamSynchronize(stream));
    for (const Variant& variant : kVariants) {
      CHECK(cudaMemsetAsync(y, 0xff, expected.size() * 4, stream));
      Task task = first;
      task.y = y;
      launch(variant, task, true, stream);
      CHECK(cudaMemcpyAsync(actual.data(), y, actual.size() * 4, cudaMemcpyDefault, stream));
      CHECK(cudaStreamSynchronize(stream));
      double difference = 0, norm = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        difference += (double{actual[i]} - expected[i]) * (double{actual[i]} - expected[i]);
        norm += double{expected[i]} * expected[i];
      }
      const double error = std::sqrt(difference / norm);
      double rate[2], us[2];
      for (const bool programmatic : {false, true}) {
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < links; ++i) {
          task.weights = weights + static_cast<int64_t>(i) * rows * cols;
          launch(variant, task, programmatic, stream);
        }
        CHECK(cudaStreamEndCapture(stream, &graph));
        CHECK(cudaGraphInstantiate(&executable, graph, 0));
        const float ms = time_ms(executable, stream);
        us[programmatic] = 1e3 * ms / links;
        rate[programmatic] = static_cast<double>(bytes) * links / ms / 1e9;
        CHECK(cudaGraphExecDestroy(executable));
        CHECK(cudaGraphDestroy(graph));
      }
      std::printf(
          "  %-42s error %.1e  plain %7.2f us %.2f TB/s   programmatic %7.2f us %.2f TB/s "
          "%3.0f%%%s\n",
          variant.name, error, us[0], rate[0], us[1], rate[1], 100 * rate[1] / roof,
          error < 1e-4 ? "" : "  WRONG");
    }
  }
  return 0;
}

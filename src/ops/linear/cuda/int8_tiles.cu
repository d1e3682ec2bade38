// Compiled for sm_90a alone.

#include "base/check.h"
#include "ops/elementwise/cuda/activations.cuh"
#include "ops/linear/cuda/int8_products.h"
#include "ops/linear/cuda/tiles.cuh"
#include "ops/linear/cuda/touched_expert.cuh"
#include "ops/linear/cuda/warpgroup.cuh"

namespace braid::cuda {
namespace {

// A block computes 128 rows, or 64 gate rows and the up rows that go with them, for up to kTokens
// tokens: two groups of four warps with 64 rows each. Weights lie in device memory as the lanes of
// the tensor cores take them, so they pass through shared memory to registers as they are; inputs
// are multiplied from shared memory.
constexpr int kGroups = 2, kPanels = 4;
constexpr int kStepCols = 128, kStepUnits = kStepCols / 32;
constexpr int kUnitBytes = 32 * 32, kWeightBytes = kPanels * kStepUnits * kUnitBytes;

// Tiles go through a ring. While the products of a step run, those behind it are brought; with one
// block on a multiprocessor, those of two steps overlap.
template <int kTokens_>
struct Shape {
  static constexpr int kTokens = kTokens_;
  static constexpr bool kOverlaps = kTokens > 128;
  static constexpr int kInputBytes = kTokens * kStepCols;
  static constexpr int kStageBytes = kWeightBytes + kInputBytes;
  static constexpr int kStages = kTokens == 128 ? 3 : 4;
  static constexpr int kAhead = kStages - (kOverlaps ? 2 : 1);
  static constexpr int kBytes = kStages * kStageBytes;
  static constexpr int kBlocks = kOverlaps ? 1 : 2;
};

#define BRAID_EIGHT(d, i)                                                                     \
  "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), \
      "+r"(d[i + 6]), "+r"(d[i + 7])
#define BRAID_SIXTEEN(d, i) BRAID_EIGHT(d, i), BRAID_EIGHT(d, i + 8)

// d[64 rows, kTokens] += a[64, 32] · b[32, kTokens], a in registers.
template <int kTokens>
struct Int8Product;
template <>
struct Int8Product<64> {
  static __device__ __forceinline__ void add(int32_t (&d)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, 1;"
        : BRAID_SIXTEEN(d, 0), BRAID_SIXTEEN(d, 16)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct Int8Product<128> {
  static __device__ __forceinline__ void add(int32_t (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, 1;"
        : BRAID_SIXTEEN(d, 0), BRAID_SIXTEEN(d, 16), BRAID_SIXTEEN(d, 32), BRAID_SIXTEEN(d, 48)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct Int8Product<256> {
  static __device__ __forceinline__ void add(int32_t (&d)[128], const uint32_t (&a)[4],
                                             uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
        "%111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
        "%127}, "
        "{%128, %129, %130, %131}, %132, 1;"
        : BRAID_SIXTEEN(d, 0), BRAID_SIXTEEN(d, 16), BRAID_SIXTEEN(d, 32), BRAID_SIXTEEN(d, 48),
          BRAID_SIXTEEN(d, 64), BRAID_SIXTEEN(d, 80), BRAID_SIXTEEN(d, 96), BRAID_SIXTEEN(d, 112)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
#undef BRAID_SIXTEEN
#undef BRAID_EIGHT

// Of a step: a lane's codes of the 16 rows that its warp has, as the tensor cores take them.
struct Codes {
  uint32_t a[kStepUnits][4];

  __device__ __forceinline__ void load(const unsigned char* weights) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const unsigned char* from =
        weights + warp / 2 * kStepUnits * kUnitBytes + warp % 2 * (kUnitBytes / 2) + lane * 16;
#pragma unroll
    for (int unit = 0; unit < kStepUnits; ++unit) {
      const uint4 v = *reinterpret_cast<const uint4*>(from + unit * kUnitBytes);
      // Codes are kept plus 128.
      a[unit][0] = v.x ^ 0x80808080u;
      a[unit][1] = v.z ^ 0x80808080u;
      a[unit][2] = v.y ^ 0x80808080u;
      a[unit][3] = v.w ^ 0x80808080u;
    }
  }
};

template <int kTokens, bool kGated>
__global__ void __launch_bounds__(kTileThreads, Shape<kTokens>::kBlocks)
    int8_tiles(const __grid_constant__ Int8Products p) {
  using S = Shape<kTokens>;
  static_assert(kTileThreads == kGroups * 128);
  extern __shared__ __align__(1024) unsigned char memory[];
  wait_for_inputs();
  ExpertTokens tokens{0, static_cast<int>(blockIdx.y) * kTokens, 0};
  if (p.experts > 0) {
    tokens = find_tile(p.offsets, p.experts, blockIdx.y, kTokens);
    if (tokens.expert < 0) return;
  } else {
    tokens.end = min(tokens.begin + kTokens, p.tokens);
  }
  const int count = tokens.end - tokens.begin;
  const int64_t matrix = tokens.expert * p.matrix_bytes;
  const int panels = (p.rows + 31) / 32, units = p.cols / 32;
  const int steps = (units + kStepUnits - 1) / kStepUnits;

  // A thread copies 16 bytes of each panel.
  const int first_panel = blockIdx.x * (kGated ? kPanels / 2 : kPanels);
  const auto panel_at = [&](int i) {
    const bool is_up = kGated && i >= kPanels / 2;
    const int panel = first_panel + (is_up ? i - kPanels / 2 : i);
    return (is_up ? p.up : p.weights) + matrix + min(panel, panels - 1) * p.panel_bytes;
  };
  const uint8_t* weights[kPanels];
#pragma unroll
  for (int i = 0; i < kPanels; ++i) weights[i] = panel_at(i) + threadIdx.x * 16;
  // And of every 32nd token.
  constexpr int kThreadTokens = kTokens / 32;
  const int piece = threadIdx.x % 8;
  const auto row_of = [&](int token) {
    const int at = tokens.begin + (token < count ? token : 0);
    return p.x_rows != nullptr ? p.x_rows[at] : at;
  };
  uint32_t inputs[kThreadTokens];  // 32 bytes each
#pragma unroll
  for (int i = 0; i < kThreadTokens; ++i) {
    inputs[i] = static_cast<uint32_t>(row_of(threadIdx.x / 8 + 32 * i) * (p.codes_stride / 32));
  }

  const auto fetch = [&](int step) {
    if (step < steps) {
      const uint32_t to = shared_address(memory + step % S::kStages * S::kStageBytes);
      const bool has_unit = step * kStepUnits + static_cast<int>(threadIdx.x) / 64 < units;
#pragma unroll
      for (int i = 0; i < kPanels; ++i) {
        copy_async(to + (i * kTileThreads + threadIdx.x) * 16,
                   weights[i] + (has_unit ? step * kStepUnits * kUnitBytes : 0), has_unit);
      }
      const int col = step * kStepCols + piece * 16;
#pragma unroll
      for (int i = 0; i < kThreadTokens; ++i) {
        const int token = threadIdx.x / 8 + 32 * i;
        const bool wanted = token < count && col < p.cols;
        copy_async(to + kWeightBytes + place(token, piece),
                   p.codes + (wanted ? int64_t{inputs[i]} * 32 + col : 0), wanted);
      }
    }
    commit_copies();
  };

  int32_t sums[kTokens / 2] = {};
  Codes codes[2];
  const auto multiply = [&](int step, Codes& of_step) {
    wait_for_copies<S::kAhead - 1>();
    publish_to_tensor_cores();
    __syncthreads();  // and all are through with the stage that is filled next
    fetch(step + S::kAhead);
    const unsigned char* stage = memory + step % S::kStages * S::kStageBytes;
    of_step.load(stage);
    const uint64_t x = tile_descriptor(shared_address(stage) + kWeightBytes);
    begin_products();
#pragma unroll
    for (int unit = 0; unit < kStepUnits; ++unit) {
      Int8Product<kTokens>::add(sums, of_step.a[unit], x + 2 * unit);
    }
    commit_products();
    wait_for_products<S::kOverlaps ? 1 : 0>();
  };
  for (int step = 0; step < S::kAhead; ++step) fetch(step);
  int step = 0;
  for (; step + 2 <= steps; step += 2) {
    multiply(step, codes[0]);
    multiply(step + 1, codes[1]);
  }
  if (step < steps) multiply(step, codes[0]);
  wait_for_products<0>();

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % 4;
  const int group = threadIdx.x / 128;
  const int row = warp * 16 + lane / 4;  // of the group; and 8 more
  float scales[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = row + 8 * i;
    const uint8_t* header = panel_at(2 * group + at / 32) + int64_t{units} * kUnitBytes;
    scales[i] = __ldg(reinterpret_cast<const float*>(header) + at % 8 * 4 + at % 32 / 8);
  }
  const auto value = [&](int i) {
    const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
    const float scale = __fmul_rn(__ldg(p.scales + row_of(token)), scales[i % 4 / 2]);
    return __fmul_rn(static_cast<float>(sums[i]), scale);
  };
  const auto store = [&](int token, int at, float result) {
    if (at < p.rows && token < count) p.y[(tokens.begin + token) * p.y_stride + at] = result;
  };
  if constexpr (kGated) {
    // The up rows' group leaves them for the other.
    float* const ups = reinterpret_cast<float*>(memory);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      if (group == 1) ups[i * 128 + threadIdx.x % 128] = value(i);
    }
    __syncthreads();
    if (group == 1) return;
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const float gate = value(i);
      const float active = p.activation == Activation::kSilu ? silu(gate) : gelu_tanh(gate);
      store(i / 4 * 8 + lane % 4 * 2 + i % 2, blockIdx.x * 64 + row + i % 4 / 2 * 8,
            active * ups[i * 128 + threadIdx.x]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      store(i / 4 * 8 + lane % 4 * 2 + i % 2, blockIdx.x * 128 + group * 64 + row + i % 4 / 2 * 8,
            value(i));
    }
  }
}

template <int kTokens, bool kGated>
void launch_tiles(Stream& stream, const Int8Products& p) {
  constexpr int kBytes = Shape<kTokens>::kBytes;
  const auto kernel = int8_tiles<kTokens, kGated>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  BRAID_CUDA_CHECK(allowed);
  // Tiles that experts can have at most: full ones, and one that is not for each.
  const int tiles = p.experts > 0 ? p.tokens / kTokens + std::min(p.experts, p.tokens)
                                  : ceil_divide(p.tokens, kTokens);
  launch(stream, kernel, dim3(ceil_divide(p.rows, kGated ? 64 : 128), tiles), dim3(kTileThreads),
         kBytes, p);
}

}  // namespace

bool has_int8_products(Stream& stream) {
  static_cast<void>(stream);  // devices of one machine are taken to be alike
  static const bool found = [] {
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, int8_tiles<64, false>) == cudaSuccess) return true;
    cudaGetLastError();  // clears it
    return false;
  }();
  return found;
}

void int8_products(Stream& stream, const Int8Products& p) {
  BRAID_CHECK(p.codes_stride % 32 == 0 && reinterpret_cast<uintptr_t>(p.codes) % 16 == 0,
              "rows of {} codes", p.codes_stride);
  const bool gated = p.up != nullptr;
  const int most = p.experts > 0 ? p.tokens / p.experts : p.tokens;
  if (most <= 64) {
    return gated ? launch_tiles<64, true>(stream, p) : launch_tiles<64, false>(stream, p);
  }
  if (gated) return launch_tiles<128, true>(stream, p);
  if (most <= 128 || p.experts > 0) return launch_tiles<128, false>(stream, p);
  launch_tiles<256, false>(stream, p);
}

}  // namespace braid::cuda

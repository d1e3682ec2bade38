// Compiled for sm_90a alone.

#include <algorithm>

#include "base/check.h"
#include "ops/linear/cuda/int8_tiles.h"
#include "ops/linear/cuda/sum_before.cuh"
#include "ops/linear/cuda/tiles.cuh"
#include "ops/linear/cuda/turned_rows.cuh"
#include "ops/linear/cuda/warpgroup.cuh"

namespace braid::cuda {
namespace {

// A block takes items of 128 rows, or 64 gate rows and the up rows that go with them, for up to
// kTokens tokens of an expert: two groups of four warps with 64 rows each. Weights lie in device
// memory as the lanes of the tensor cores take them, so they pass through shared memory to
// registers as they are; inputs are multiplied from shared memory. Blocks stay and go through
// several items; what they bring runs ahead of what they multiply, into the next item, too.
constexpr int kPanels = 4, kItemRows = 128;
constexpr int kStepCols = 128, kStepUnits = kStepCols / 32;
constexpr int kUnitBytes = 32 * 32, kWeightBytes = kPanels * kStepUnits * kUnitBytes;
constexpr int kMostExperts = 1024;

enum class Output {
  kPlain,    // y
  kRounded,  // y as bfloat16
  kGated,    // activation(gate) ⊙ up
};

// Tiles go through a ring. With one block on a multiprocessor, the products of two steps overlap.
template <int kTokens_>
struct Shape {
  static constexpr int kTokens = kTokens_;
  static constexpr bool kOverlaps = kTokens > 128;
  static constexpr int kInputBytes = kTokens * kStepCols;
  static constexpr int kStageBytes = kWeightBytes + kInputBytes;
  static constexpr int kStages = kTokens == 128 ? 3 : 4;
  static constexpr int kAhead = kStages - (kOverlaps ? 2 : 1);
  static constexpr int kBytes = kStages * kStageBytes + kTokens * 4;
  static constexpr int kBlocks = kOverlaps ? 1 : 2;
};

#define BRAID_EIGHT(d, i)                                                                     \
  "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), \
      "+r"(d[i + 6]), "+r"(d[i + 7])
#define BRAID_SIXTEEN(d, i) BRAID_EIGHT(d, i), BRAID_EIGHT(d, i + 8)

// d[64 rows, kTokens] += a[64, 32] · b[32, kTokens], a in registers; or, if not `adds`, d = a · b.
template <int kTokens>
struct Int8Product;
template <>
struct Int8Product<64> {
  static __device__ __forceinline__ void add(int32_t (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                             int adds) {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, adds;\n}"
        : BRAID_SIXTEEN(d, 0), BRAID_SIXTEEN(d, 16)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));
  }
};
template <>
struct Int8Product<128> {
  static __device__ __forceinline__ void add(int32_t (&d)[64], const uint32_t (&a)[4], uint64_t b,
                                             int adds) {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, adds;\n}"
        : BRAID_SIXTEEN(d, 0), BRAID_SIXTEEN(d, 16), BRAID_SIXTEEN(d, 32), BRAID_SIXTEEN(d, 48)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));
  }
};
template <>
struct Int8Product<256> {
  static __device__ __forceinline__ void add(int32_t (&d)[128], const uint32_t (&a)[4], uint64_t b,
                                             int adds) {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %133, 0;\n"
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
        "{%128, %129, %130, %131}, %132, adds;\n}"
        : BRAID_SIXTEEN(d, 0), BRAID_SIXTEEN(d, 16), BRAID_SIXTEEN(d, 32), BRAID_SIXTEEN(d, 48),
          BRAID_SIXTEEN(d, 64), BRAID_SIXTEEN(d, 80), BRAID_SIXTEEN(d, 96), BRAID_SIXTEEN(d, 112)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));
  }
};
#undef BRAID_SIXTEEN
#undef BRAID_EIGHT

// Of a step: a lane's codes of the 16 rows that its warp has, as the tensor cores take them.
// kGated: eight rows of the gate and, in place of the eight behind them, those of up that go with
// them.
template <bool kGated>
struct Codes {
  uint32_t a[kStepUnits][4];

  __device__ __forceinline__ void load(const unsigned char* weights) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    constexpr int kPanelBytes = kStepUnits * kUnitBytes;
    // Codes are kept plus 128.
    const auto set = [&](int unit, int i, uint32_t codes) { a[unit][i] = codes ^ 0x80808080u; };
    if constexpr (kGated) {
      const unsigned char* from = weights + warp / 4 * kPanelBytes +
                                  warp / 2 % 2 * (kUnitBytes / 2) + lane * 16 + warp % 2 * 8;
#pragma unroll
      for (int unit = 0; unit < kStepUnits; ++unit) {
        const uint2 gate = *reinterpret_cast<const uint2*>(from + unit * kUnitBytes);
        const uint2 up =
            *reinterpret_cast<const uint2*>(from + kPanels / 2 * kPanelBytes + unit * kUnitBytes);
        set(unit, 0, gate.x), set(unit, 2, gate.y);
        set(unit, 1, up.x), set(unit, 3, up.y);
      }
    } else {
      const unsigned char* from =
          weights + warp / 2 * kPanelBytes + warp % 2 * (kUnitBytes / 2) + lane * 16;
#pragma unroll
      for (int unit = 0; unit < kStepUnits; ++unit) {
        const uint4 v = *reinterpret_cast<const uint4*>(from + unit * kUnitBytes);
        set(unit, 0, v.x), set(unit, 2, v.y);
        set(unit, 1, v.z), set(unit, 3, v.w);
      }
    }
  }
};

// Rows and tokens of an item.
struct Item {
  int expert, begin, count, row_block;
};

// Which items there are.
class Items {
 public:
  // By all threads; first_tiles: room for tiles in front of each expert and all of them.
  __device__ Items(const Int8Products& p, int tile_tokens, int row_blocks, int* first_tiles)
      : p_(p), tile_tokens_(tile_tokens), row_blocks_(row_blocks), first_tiles_(first_tiles) {
    if (p.experts == 0) {
      count_ = (p.tokens + tile_tokens - 1) / tile_tokens * row_blocks;
      return;
    }
    __shared__ int warp_tiles[kTileThreads / kWarp];
    // A thread has neighbouring experts.
    const int each = (p.experts + kTileThreads - 1) / kTileThreads;
    const int first = min(static_cast<int>(threadIdx.x) * each, p.experts);
    const int last = min(first + each, p.experts);
    int tiles = 0, all = 0;
    for (int e = first; e < last; ++e) tiles += tiles_of(e);
    int before = sum_before<kTileThreads>(tiles, warp_tiles, all);
    for (int e = first; e < last; ++e) {
      first_tiles[e] = before;
      before += tiles_of(e);
    }
    __syncthreads();
    count_ = all * row_blocks;
  }

  __device__ int count() const { return count_; }
  __device__ Item at(int index) const {
    const int tile = index / row_blocks_;
    Item item{0, tile * tile_tokens_, p_.tokens, index - tile * row_blocks_};
    int end = p_.tokens;
    if (p_.experts > 0) {
      // The last expert that begins with this tile or before it.
      int low = 0, high = p_.experts;
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        (first_tiles_[middle] <= tile ? low : high) = middle;
      }
      item.expert = low;
      item.begin = __ldg(p_.offsets + low) + (tile - first_tiles_[low]) * tile_tokens_;
      end = __ldg(p_.offsets + low + 1);
    }
    item.count = min(tile_tokens_, end - item.begin);
    return item;
  }

 private:
  __device__ int tiles_of(int e) const {
    return (p_.offsets[e + 1] - p_.offsets[e] + tile_tokens_ - 1) / tile_tokens_;
  }

  const Int8Products& p_;
  int tile_tokens_, row_blocks_, count_;
  const int* first_tiles_;
};

// The bits of silu(x) or gelu_tanh(x), in as few instructions as one of them.
__device__ __forceinline__ float activated(bool is_silu, float x) {
  constexpr float kMinusTwoRootTwoOverPi = -1.5957691216f;
  const float cubic = fmaf(0.044715f, x * x, 1.0f);
  return x / (expf(is_silu ? -x : x * kMinusTwoRootTwoOverPi * cubic) + 1);
}

// What becomes of an item's sums.
struct Ending {
  Item item;
  float x_scale;              // of token threadIdx.x
  float w_scale, next_scale;  // of this lane's two rows
};

// All sums of an item, scaled, to where they belong.
template <int kTokens, Output kOutput>
__device__ __forceinline__ void store_sums(const Int8Products& p,
                                           const int32_t (&sums)[kTokens / 2],
                                           const float* x_scales, const Ending& ending) {
  constexpr bool kGated = kOutput == Output::kGated;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, quad = lane % 4;
  const int count = ending.item.count;
  const auto scaled = [&](int i) {
    const float2 of_tokens = *reinterpret_cast<const float2*>(x_scales + i / 4 * 8 + quad * 2);
    return __fmul_rn(static_cast<float>(sums[i]),
                     __fmul_rn(i % 2 == 0 ? of_tokens.x : of_tokens.y,
                               i % 4 < 2 ? ending.w_scale : ending.next_scale));
  };
  if constexpr (kOutput == Output::kRounded) {
    const int row = ending.item.row_block * kItemRows + warp * 16;
    if (row >= p.rows) return;
    store_turned<kTokens>(p.rounded + ending.item.begin * p.y_stride + row, p.y_stride, count,
                          scaled);
  } else {
    const int row = kGated ? ending.item.row_block * (kItemRows / 2) + warp * 8 + lane / 4
                           : ending.item.row_block * kItemRows + warp * 16 + lane / 4;
    const bool is_row = row < p.rows, is_next = row + 8 < p.rows;
    const bool is_silu = p.activation == Activation::kSilu;
    float* y = p.y + (ending.item.begin + quad * 2) * p.y_stride + row;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j, y += 8 * p.y_stride) {
      if (8 * j >= count) break;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool is_token = 8 * j + quad * 2 + i < count;
        float* const at = y + i * p.y_stride;
        if constexpr (kGated) {
          const float active = activated(is_silu, scaled(4 * j + i));
          if (is_token && is_row) *at = active * scaled(4 * j + 2 + i);
        } else {
          if (is_token && is_row) at[0] = scaled(4 * j + i);
          if (is_token && is_next) at[8] = scaled(4 * j + 2 + i);
        }
      }
    }
  }
}

template <int kTokens, Output kOutput>
__global__ void __launch_bounds__(kTileThreads, Shape<kTokens>::kBlocks)
    int8_tiles(const __grid_constant__ Int8Products p) {
  using S = Shape<kTokens>;
  static_assert(kTileThreads == 256);
  constexpr bool kGated = kOutput == Output::kGated;
  // Whether there are registers for the ending of an item while its sums are computed.
  constexpr bool kEarly = kTokens == 64;
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ int first_tiles[kMostExperts];
  float* const x_scales = reinterpret_cast<float*>(memory + S::kStages * S::kStageBytes);
  constexpr int kBlockRows = kGated ? kItemRows / 2 : kItemRows;
  wait_for_inputs();
  const Items items(p, kTokens, (p.rows + kBlockRows - 1) / kBlockRows, first_tiles);
  const int panels = (p.rows + 31) / 32, units = p.cols / 32;
  const int steps = (units + kStepUnits - 1) / kStepUnits;
  const auto panel_at = [&](const Item& item, int i) {
    const bool is_up = kGated && i >= kPanels / 2;
    const int panel = item.row_block * (kBlockRows / 32) + (is_up ? i - kPanels / 2 : i);
    return (is_up ? p.up : p.weights) + item.expert * p.matrix_bytes +
           min(panel, panels - 1) * p.panel_bytes;
  };
  const auto row_of = [&](const Item& item, int token) {
    const int at = item.begin + (token < item.count ? token : 0);
    return p.x_rows != nullptr ? __ldg(p.x_rows + at) : at;
  };

  // What is brought: a thread copies 16 bytes of each panel, and of every 32nd token.
  constexpr int kThreadTokens = kTokens / 32;
  const int piece = threadIdx.x % 8;
  int fetch_item = blockIdx.x, fetch_step = 0, fetch_count = 0, fetch_stage = 0;
  const uint8_t* weights[kPanels];
  uint32_t inputs[kThreadTokens];  // in 32 bytes
  int next_rows[kThreadTokens];    // of the item behind, on their way
  const auto find_rows = [&](const Item& item) {
#pragma unroll
    for (int i = 0; i < kThreadTokens; ++i) {
      next_rows[i] = row_of(item, threadIdx.x / 8 + 32 * i);
    }
  };
  const auto begin_fetching = [&] {
    const Item item = items.at(fetch_item);
    fetch_count = item.count;
#pragma unroll
    for (int i = 0; i < kPanels; ++i) weights[i] = panel_at(item, i) + threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < kThreadTokens; ++i) {
      inputs[i] = static_cast<uint32_t>(next_rows[i] * (p.codes_stride / 32));
    }
    const int next = fetch_item + static_cast<int>(gridDim.x);
    if (next < items.count()) find_rows(items.at(next));
  };
  const auto fetch = [&] {
    if (fetch_item < items.count()) {
      const uint32_t to = shared_address(memory + fetch_stage * S::kStageBytes);
      const bool has_unit = fetch_step * kStepUnits + static_cast<int>(threadIdx.x) / 64 < units;
#pragma unroll
      for (int i = 0; i < kPanels; ++i) {
        copy_async(to + (i * kTileThreads + threadIdx.x) * 16,
                   weights[i] + (has_unit ? fetch_step * kStepUnits * kUnitBytes : 0), has_unit);
      }
      const int col = fetch_step * kStepCols + piece * 16;
#pragma unroll
      for (int i = 0; i < kThreadTokens; ++i) {
        const int token = threadIdx.x / 8 + 32 * i;
        const bool wanted = token < fetch_count && col < p.cols;
        copy_async(to + kWeightBytes + place(token, piece),
                   p.codes + (wanted ? int64_t{inputs[i]} * 32 + col : 0), wanted);
      }
      if (++fetch_stage == S::kStages) fetch_stage = 0;
      if (++fetch_step == steps) {
        fetch_step = 0;
        fetch_item += gridDim.x;
        if (fetch_item < items.count()) begin_fetching();
      }
    }
    commit_copies();
  };
  if (fetch_item < items.count()) {
    find_rows(items.at(fetch_item));
    begin_fetching();
  }
#pragma unroll 1
  for (int i = 0; i < S::kAhead; ++i) fetch();

  int32_t sums[kTokens / 2] = {};
  Codes<kGated> codes[2];
  int stage = 0;
  const auto multiply = [&](int step, Codes<kGated>& of_step) {
    wait_for_copies<S::kAhead - 1>();
    publish_to_tensor_cores();
    __syncthreads();  // and all are through with the stage that is filled next
    fetch();
    const unsigned char* at = memory + stage * S::kStageBytes;
    if (++stage == S::kStages) stage = 0;
    of_step.load(at);
    const uint64_t x = tile_descriptor(shared_address(at) + kWeightBytes);
    begin_products();
#pragma unroll
    for (int unit = 0; unit < kStepUnits; ++unit) {
      Int8Product<kTokens>::add(sums, of_step.a[unit], x + 2 * unit, step + unit);
    }
    commit_products();
    wait_for_products<S::kOverlaps ? 1 : 0>();
  };
  const auto ending_of = [&](int index) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const Item item = items.at(index);
    const int token = static_cast<int>(threadIdx.x);
    const auto scale_of = [&](int panel, int eight) {
      const uint8_t* scales = panel_at(item, panel) + int64_t{units} * kUnitBytes;
      return __ldg(reinterpret_cast<const float*>(scales) + lane / 4 * 4 + eight);
    };
    return Ending{
        item, token < kTokens ? __ldg(p.scales + row_of(item, token)) : 0,
        kGated ? scale_of(warp / 4, warp % 4) : scale_of(warp / 2, warp % 2 * 2),
        kGated ? scale_of(kPanels / 2 + warp / 4, warp % 4) : scale_of(warp / 2, warp % 2 * 2 + 1)};
  };
#pragma unroll 1
  for (int index = blockIdx.x; index < items.count(); index += gridDim.x) {
    Ending ending;
    if constexpr (kEarly) ending = ending_of(index);
    if constexpr (S::kOverlaps) {
      // In turn, and twice the same only when nothing is on its way.
      int step = 0;
#pragma unroll 1
      for (; step + 2 <= steps; step += 2) {
        multiply(step, codes[0]);
        multiply(step + 1, codes[1]);
      }
      if (step < steps) multiply(step, codes[0]);
    } else {
#pragma unroll 1
      for (int step = 0; step < steps; ++step) multiply(step, codes[0]);
    }
    if constexpr (!kEarly) ending = ending_of(index);
    if (threadIdx.x < kTokens) x_scales[threadIdx.x] = ending.x_scale;
    wait_for_products<0>();
    __syncthreads();
    store_sums<kTokens, kOutput>(p, sums, x_scales, ending);
  }
}

template <int kTokens, Output kOutput>
void launch_tiles(Stream& stream, const Int8Products& p) {
  constexpr int kBytes = Shape<kTokens>::kBytes;
  const auto kernel = int8_tiles<kTokens, kOutput>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  BRAID_CUDA_CHECK(allowed);
  // Tiles that experts can have at most: full ones, and one that is not for each.
  const int tiles = p.experts > 0 ? p.tokens / kTokens + std::min(p.experts, p.tokens)
                                  : ceil_divide(p.tokens, kTokens);
  const int64_t most =
      int64_t{tiles} * ceil_divide(p.rows, kOutput == Output::kGated ? kItemRows / 2 : kItemRows);
  const int64_t at_once = Shape<kTokens>::kBlocks * stream.cuda().num_multiprocessors();
  launch(stream, kernel, dim3(static_cast<unsigned>(std::min(most, at_once))), dim3(kTileThreads),
         kBytes, p);
}

}  // namespace

bool has_int8_products(Stream& stream) {
  static_cast<void>(stream);  // devices of one machine are taken to be alike
  static const bool found = [] {
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, int8_tiles<64, Output::kPlain>) == cudaSuccess)
      return true;
    cudaGetLastError();  // clears it
    return false;
  }();
  return found;
}

void int8_tiles_products(Stream& stream, const Int8Products& p, int tile_tokens) {
  BRAID_CHECK(p.experts <= kMostExperts, "{} experts", p.experts);
  BRAID_CHECK(p.rounded == nullptr || (p.rows % 16 == 0 && p.y_stride % 4 == 0 &&
                                       reinterpret_cast<uintptr_t>(p.rounded) % 8 == 0),
              "{} rounded rows", p.rows);
  if (tile_tokens == 0) {
    const int most = p.experts > 0 ? p.tokens / p.experts : p.tokens;
    tile_tokens = most <= 64 ? 64 : most <= 128 ? 128 : 256;
  }
  const auto run = [&](auto output) {
    constexpr Output kOutput = decltype(output)::value;
    if (tile_tokens == 64) return launch_tiles<64, kOutput>(stream, p);
    if constexpr (kOutput == Output::kPlain) {
      if (tile_tokens == 256 && p.experts == 0) return launch_tiles<256, kOutput>(stream, p);
    }
    launch_tiles<128, kOutput>(stream, p);
  };
  if (p.up != nullptr) {
    run(std::integral_constant<Output, Output::kGated>{});
  } else if (p.rounded != nullptr) {
    run(std::integral_constant<Output, Output::kRounded>{});
  } else {
    run(std::integral_constant<Output, Output::kPlain>{});
  }
}

}  // namespace braid::cuda

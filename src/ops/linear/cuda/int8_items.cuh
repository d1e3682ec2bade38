#pragma once

// Parts of the kernels for int8 products (int8_products.h) by tiles: sums of 16 rows a warp for up
// to kTokens tokens. Weights lie in device memory as the lanes of the tensor cores take them, so
// they pass through shared memory to registers as they are; inputs are multiplied from shared
// memory. For Hopper.

#include <algorithm>

#include "ops/linear/cuda/int8_products.h"
#include "ops/linear/cuda/sum_before.cuh"
#include "ops/linear/cuda/turned_rows.cuh"

namespace braid::cuda {

inline constexpr int kStepCols = 128, kStepUnits = kStepCols / 32;
inline constexpr int kUnitBytes = 32 * 32, kPanelStepBytes = kStepUnits * kUnitBytes;
inline constexpr int kMostExperts = 1024;

enum class Output {
  kPlain,    // y
  kRounded,  // y as bfloat16
  kGated,    // activation(gate) ⊙ up
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
// them. An item has kPanels panels of 32 rows.
template <bool kGated, int kPanels>
struct Codes {
  uint32_t a[kStepUnits][4];

  __device__ __forceinline__ void load(const unsigned char* weights) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    // Codes are kept plus 128.
    const auto set = [&](int unit, int i, uint32_t codes) { a[unit][i] = codes ^ 0x80808080u; };
    if constexpr (kGated) {
      const unsigned char* from = weights + warp / 4 * kPanelStepBytes +
                                  warp / 2 % 2 * (kUnitBytes / 2) + lane * 16 + warp % 2 * 8;
#pragma unroll
      for (int unit = 0; unit < kStepUnits; ++unit) {
        const uint2 gate = *reinterpret_cast<const uint2*>(from + unit * kUnitBytes);
        const uint2 up = *reinterpret_cast<const uint2*>(from + kPanels / 2 * kPanelStepBytes +
                                                         unit * kUnitBytes);
        set(unit, 0, gate.x), set(unit, 2, gate.y);
        set(unit, 1, up.x), set(unit, 3, up.y);
      }
    } else {
      const unsigned char* from =
          weights + warp / 2 * kPanelStepBytes + warp % 2 * (kUnitBytes / 2) + lane * 16;
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

// How many there are at most: tiles of experts are full, or one that is not for each.
inline int64_t most_items(const Int8Products& p, int tile_tokens, int item_rows) {
  const int64_t tiles = p.experts > 0 ? p.tokens / tile_tokens + std::min(p.experts, p.tokens)
                                      : ceil_divide(p.tokens, tile_tokens);
  return tiles * ceil_divide(p.rows, item_rows);
}

// Which items there are.
template <int kThreads>
class Items {
 public:
  // By all threads; first_tiles: room for tiles in front of each expert and all of them.
  __device__ Items(const Int8Products& p, int tile_tokens, int row_blocks, int* first_tiles)
      : p_(p), tile_tokens_(tile_tokens), row_blocks_(row_blocks), first_tiles_(first_tiles) {
    if (p.experts == 0) {
      count_ = (p.tokens + tile_tokens - 1) / tile_tokens * row_blocks;
      return;
    }
    __shared__ int warp_tiles[kThreads / kWarp];
    // A thread has neighbouring experts.
    const int each = (p.experts + kThreads - 1) / kThreads;
    const int first = min(static_cast<int>(threadIdx.x) * each, p.experts);
    const int last = min(first + each, p.experts);
    int tiles = 0, all = 0;
    for (int e = first; e < last; ++e) tiles += tiles_of(e);
    int before = sum_before<kThreads>(tiles, warp_tiles, all);
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
      item.begin = p_.offsets[low] + (tile - first_tiles_[low]) * tile_tokens_;
      end = p_.offsets[low + 1];
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
  float w_scale, next_scale;  // of this lane's two rows
};

// All sums of an item, scaled, to where they belong.
template <int kTokens, int kItemRows, Output kOutput>
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

// Where panel i of an item begins; gated: the second half of an item's panels are those of up.
template <bool kGated, int kPanels>
__device__ __forceinline__ const uint8_t* panel_of(const Int8Products& p, const Item& item, int i) {
  constexpr int kBlockPanels = kGated ? kPanels / 2 : kPanels;
  const bool is_up = kGated && i >= kBlockPanels;
  const int panel = item.row_block * kBlockPanels + (is_up ? i - kBlockPanels : i);
  return (is_up ? p.up : p.weights) + item.expert * p.matrix_bytes +
         min(panel, (p.rows + 31) / 32 - 1) * p.panel_bytes;
}

// Row of the inputs of an item's token.
__device__ __forceinline__ int input_row(const Int8Products& p, const Item& item, int token) {
  const int at = item.begin + (token < item.count ? token : 0);
  return p.x_rows != nullptr ? p.x_rows[at] : at;
}

template <bool kGated, int kPanels>
__device__ __forceinline__ Ending ending_of(const Int8Products& p, const Item& item) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto scale_of = [&](int panel, int eight) {
    const uint8_t* scales =
        panel_of<kGated, kPanels>(p, item, panel) + int64_t{p.cols / 32} * kUnitBytes;
    return __ldg(reinterpret_cast<const float*>(scales) + lane / 4 * 4 + eight);
  };
  return {
      item, kGated ? scale_of(warp / 4, warp % 4) : scale_of(warp / 2, warp % 2 * 2),
      kGated ? scale_of(kPanels / 2 + warp / 4, warp % 4) : scale_of(warp / 2, warp % 2 * 2 + 1)};
}

}  // namespace braid::cuda

// As few_tokens.cuh, for weights in the layout of quant/device_tiles.h: every load of a warp takes
// a whole tile. Codes are multiplied as they are, and the sums of each unit of 32 columns then by
// its scale in float32: no weight is rounded.

#include <algorithm>

#include "ops/linear/cuda/few_tokens.cuh"
#include "ops/linear/cuda/tile_rows.cuh"

namespace braid::cuda {
namespace {

// What a thread holds of a panel's tile.
template <FormatId kFormat>
struct TileChunk {
  using Scheme = TileScheme<kFormat>;
  static constexpr int kUnits = Scheme::kBits == 4 ? 2 : 1;
  static constexpr int kScales = (kUnits + Scheme::kGroupUnits - 1) / Scheme::kGroupUnits;
  uint4 codes;
  uint32_t scales[kScales];  // of rows lane / 4 and 8 more

  __device__ void load(const uint8_t* panel, int tile, int tiles) {
    const int lane = threadIdx.x % kWarp;
    codes = load_streamed(panel + tile * 512 + lane * 16);
    const uint8_t* at = panel + tiles * 512 + lane / 4 * 4 * kScales;
    if constexpr (kScales == 2) {
      const uint2 both = __ldg(reinterpret_cast<const uint2*>(at + tile * 64));
      scales[0] = both.x;
      scales[1] = both.y;
    } else {
      scales[0] = read32_aligned(at + tile * kUnits / Scheme::kGroupUnits * 32);
    }
  }
  // Keeps what is made of them from being made earlier, and from taking registers until then.
  __device__ void hold() {
    asm volatile("" : "+r"(codes.x), "+r"(codes.y), "+r"(codes.z), "+r"(codes.w));
  }
  // Of a unit: the row's weights without their scale, and those of the row 8 further on.
  __device__ void spread(int unit, uint32_t (&low)[4], uint32_t (&high)[4]) const {
    if constexpr (Scheme::kBits == 4) {
      spread_nibbles(unit == 0 ? codes.x : codes.z, low);
      spread_nibbles(unit == 0 ? codes.y : codes.w, high);
    } else {
      spread_bytes(codes.x, low[0], low[1]);
      spread_bytes(codes.y, low[2], low[3]);
      spread_bytes(codes.z, high[0], high[1]);
      spread_bytes(codes.w, high[2], high[3]);
    }
  }
  __device__ float scale(int unit, int half) const {
    return Scheme::scale(scales[kScales == 1 ? 0 : unit] >> (16 * half) & 0xffff);
  }
};

// Adds a unit's products to the sums.
template <typename Chunk, int kTokenTiles>
__device__ __forceinline__ void multiply_unit(const Chunk& chunk, int unit,
                                              const uint4 (&inputs)[kTokenTiles],
                                              float (&sums)[kTokenTiles][4]) {
  uint32_t low[4], high[4];
  chunk.spread(unit, low, high);
  const float low_scale = chunk.scale(unit, 0), high_scale = chunk.scale(unit, 1);
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
    const uint4& b = inputs[t];
    float products[4];
    multiply(products, low[0], high[0], low[1], high[1], b.x, b.y);
    multiply_add(products, low[2], high[2], low[3], high[3], b.z, b.w);
    sums[t][0] = fmaf(low_scale, products[0], sums[t][0]);
    sums[t][1] = fmaf(low_scale, products[1], sums[t][1]);
    sums[t][2] = fmaf(high_scale, products[2], sums[t][2]);
    sums[t][3] = fmaf(high_scale, products[3], sums[t][3]);
  }
}

template <FormatId kFormat, int kTokenTiles, int kRowWarps, int kDepth>
__global__ void __launch_bounds__(kFewWarps* kWarp, 2)
    few_tokens_tiles(const __grid_constant__ Products p, const FewTokensPlan plan) {
  using Chunk = TileChunk<kFormat>;
  constexpr int kKWarps = kFewWarps / kRowWarps;
  constexpr int kRows = 32 * kRowWarps;
  constexpr int kTokens = 8 * kTokenTiles;
  __shared__ Partial<kTokenTiles, kRowWarps> partial;

  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int row_warp = warp % kRowWarps, k_warp = warp / kRowWarps;
  const int group = lane / 4, quad = lane % 4;
  const int block_row = blockIdx.x * kRows;
  const int tiles = p.cols / (Chunk::kUnits * kUnitColumns);  // of a panel
  const int first_tile = tiles * static_cast<int>(blockIdx.y) / plan.splits;
  const int end_tile = tiles * (static_cast<int>(blockIdx.y) + 1) / plan.splits;
  const auto tile_of = [&](int step) { return first_tile + step * kKWarps + k_warp; };

  const uint8_t* matrix = p.weights;
  ExpertTokens tokens{0, 0, p.tokens};
  if (p.experts > 0) {
    wait_for_inputs();
    tokens = find_tile(p.offsets, p.experts, blockIdx.z, 0);
    if (tokens.expert < 0) return;  // for all blocks of a cluster alike
    matrix += tokens.expert * p.matrix_bytes;
  }
  const int64_t panel_bytes = 16 * p.row_bytes;
  const int panels = (p.rows + 15) / 16;
  const uint8_t* panel[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    panel[i] = matrix + min(block_row / 16 + row_warp * 2 + i, panels - 1) * panel_bytes;
  }

  Chunk chunks[kDepth][2];
  const auto load_weights = [&](Chunk(&to)[2], int step) {
    const int tile = tile_of(step);
    if (tile >= end_tile) return;
    to[0].load(panel[0], tile, tiles);
    to[1].load(panel[1], tile, tiles);
  };
#pragma unroll
  for (int d = 0; d < kDepth; ++d) load_weights(chunks[d], d);
  if (p.experts == 0) wait_for_inputs();

  for (int first_token = tokens.begin; first_token < tokens.end; first_token += kTokens) {
    const int count = min(kTokens, tokens.end - first_token);
    if (first_token != tokens.begin) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) load_weights(chunks[d], d);
    }
    const uint16_t* x[kTokenTiles];
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      x[t] = p.packed + (first_token + min(8 * t + group, count - 1)) * p.packed_stride + quad * 8;
    }
    // Of a unit, counted through this warp's tiles.
    const auto load_inputs = [&](uint4(&to)[kTokenTiles], int unit) {
      const int tile = tile_of(unit / Chunk::kUnits);
      if (tile >= end_tile) return;
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        to[t] = *reinterpret_cast<const uint4*>(
            x[t] + (tile * Chunk::kUnits + unit % Chunk::kUnits) * kUnitColumns);
      }
    };

    float sums[2][kTokenTiles][4] = {};
    uint4 inputs[2][kTokenTiles];
    load_inputs(inputs[0], 0);
    for (int base = 0; tile_of(base) < end_tile; base += kDepth) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int step = base + d;
        if (tile_of(step) < end_tile) {
#pragma unroll
          for (int u = 0; u < Chunk::kUnits; ++u) {
            constexpr int kUnits = Chunk::kUnits;
            const uint4(&present)[kTokenTiles] = inputs[(d * kUnits + u) % 2];
            load_inputs(inputs[(d * kUnits + u + 1) % 2], step * kUnits + u + 1);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              chunks[d][i].hold();
              multiply_unit(chunks[d][i], u, present, sums[i]);
            }
          }
          load_weights(chunks[d], step + kDepth);
        }
      }
    }
    add_up<kTokenTiles, kRowWarps>(p, plan, sums, partial, block_row, first_token, count);
  }
}

template <FormatId kFormat, int kTokenTiles, int kDepth>
void launch_shape(Stream& stream, const Products& products) {
  const int chunks = products.cols / (TileChunk<kFormat>::kUnits * kUnitColumns);
  const FewTokensShape shape = few_tokens_shape(stream, products, chunks);
  if (shape.row_warps == 1) {
    launch_few(stream, few_tokens_tiles<kFormat, kTokenTiles, 1, kDepth>, 32, products, shape.plan);
  } else {
    launch_few(stream, few_tokens_tiles<kFormat, kTokenTiles, 2, kDepth>, 64, products, shape.plan);
  }
}

template <FormatId kFormat>
void launch_tiles(Stream& stream, const Products& products, int tokens) {
  if (tokens <= 8) {
    launch_shape<kFormat, 1, 4>(stream, products);
  } else if (tokens <= 16) {
    launch_shape<kFormat, 2, 4>(stream, products);
  } else {
    launch_shape<kFormat, 4, 2>(stream, products);
  }
}

}  // namespace

void few_tokens_of_tiles(Stream& stream, const Products& products, int tokens) {
  if (products.format == FormatId::kQ4_0) {
    launch_tiles<FormatId::kQ4_0>(stream, products, tokens);
  } else {
    launch_tiles<FormatId::kQ8_0>(stream, products, tokens);
  }
}

}  // namespace braid::cuda

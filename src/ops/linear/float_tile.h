#pragma once

// Products of block-quantised weights with float32 inputs: tiles of rows are expanded, by the
// decoders of the int8 kernels, into a panel that stays in cache while the tokens pass. An output
// is the sum of the sums of runs of kRunColumns neighbouring columns, each added up in order.

#include "ops/linear/int8_tile.h"

namespace braid::BRAID_ISA {

inline constexpr int kRunColumns = 16;
inline constexpr int kPanelColumns = 256;

// acc[r][c] += one whole run of w[r] · x[c]. w: [kR][kPanelColumns].
template <int kR, int kC>
BRAID_INLINE void multiply_run(const Vf* w, const float* const (&x)[kC], Vf (&acc)[kR][kC]) {
  Vf run[kR][kC] = {};
  unroll<0, kRunColumns>(BRAID_UNROLLED(i) {
    unroll<0, kC>(BRAID_UNROLLED(c) {
      const Vf input = splat(x[c.value][i.value]);
      unroll<0, kR>(BRAID_UNROLLED(r) {
        Vf& a = run[r.value][c.value];
        a = fma(w[r.value * kPanelColumns + i.value], input, a);
      });
    });
  });
  unroll<0, kC>(BRAID_UNROLLED(c) {
    unroll<0, kR>(BRAID_UNROLLED(r) { acc[r.value][c.value] += run[r.value][c.value]; });
  });
}

// kC tokens × kTileGroups row groups over a panel [group][kPanelColumns]; adds to acc. `columns` is
// a multiple of kRunColumns.
template <int kC>
[[gnu::noinline]] static void float_panel(const LinearTask& task, const Vf* panel, int64_t first,
                                          int64_t columns, int64_t token, Vf (*acc)[kTileGroups]) {
  const float* x[kC];
  Vf sums[kTileGroups][kC];
  unroll<0, kC>(BRAID_UNROLLED(c) {
    x[c.value] = task.x + (token + c.value) * task.x_stride + first;
    unroll<0, kTileGroups>(BRAID_UNROLLED(r) { sums[r.value][c.value] = acc[c.value][r.value]; });
  });
  for (; columns > 0; columns -= kRunColumns, panel += kRunColumns) {
    multiply_run<kTileGroups, kC>(panel, x, sums);
    unroll<0, kC>(BRAID_UNROLLED(c) { x[c.value] += kRunColumns; });
  }
  unroll<0, kC>(BRAID_UNROLLED(c) {
    unroll<0, kTileGroups>(BRAID_UNROLLED(r) { acc[c.value][r.value] = sums[r.value][c.value]; });
  });
}

// The weights of a sub-block.
template <typename Kind>
[[gnu::noinline]] static void expand(const CodeBlock<Kind>& block, Vf* out) {
  unroll<0, 32>(BRAID_UNROLLED(column) {
    constexpr int k = column.value, g = k * Kind::kGroups / 32;
    Vf w;
    if constexpr (Kind::kSigned) {
      w = signed_byte<k % 4>(block.codes[k / 4]);
    } else {
      w = unsigned_byte<k % 4>(block.codes[k / 4]);
    }
    if constexpr (Kind::kOffset != 0) w -= splat(static_cast<float>(Kind::kOffset));
    // Small integers and float16 scales: the product is exact, so an FMA rounds as the two
    // operations of dequantize() do.
    out[k] = Kind::kMin ? fma(w, block.scale[g], block.min[g]) : w * block.scale[g];
  });
}

// Columns [first, first + columns) of a row group, whole blocks.
template <typename Decoder>
[[gnu::noinline]] static void expand_panel(const typename Decoder::Rows& rows, int64_t first,
                                           int64_t columns, Prefetcher& prefetch, Vf* panel) {
  constexpr int64_t kBlockColumns = 32 * Decoder::kSubBlocks;
  int64_t offset = first / kBlockColumns * Decoder::kBlockBytes;
  for (; columns > 0; columns -= kBlockColumns, offset += Decoder::kBlockBytes) {
    prefetch.advance(kLanes * Decoder::kBlockBytes);
    CodeBlock<typename Decoder::Kind> blocks[Decoder::kSubBlocks];
    Decoder::decode(rows, offset, blocks);
    for (int s = 0; s < Decoder::kSubBlocks; ++s, panel += 32) expand(blocks[s], panel);
  }
}

// kTileGroups row groups × the tokens of the range.
template <typename Decoder>
[[gnu::noinline]] static void float_tile(const LinearTask& task, int64_t row,
                                         const LinearRange& range) {
  constexpr int kTileRows = kTileGroups * kLanes;
  Vf panel[kTileGroups * kPanelColumns];
  TileSums acc;
  for (int64_t t = 0; t < range.token_end - range.token_begin; ++t) {
    for (Vf& sum : acc[t]) sum = Vf{};
  }
  typename Decoder::Rows rows[kTileGroups];
  for (int g = 0; g < kTileGroups; ++g) rows[g] = Decoder::Rows::at(task, row + g * kLanes);
  Prefetcher prefetch = prefetch_rows(task, row + kTileRows, kTileRows, range.row_end);
  for (int64_t first = 0; first < task.cols; first += kPanelColumns) {
    const int64_t left = task.cols - first;
    const int64_t columns = left < kPanelColumns ? left : kPanelColumns;
    for (int g = 0; g < kTileGroups; ++g) {
      expand_panel<Decoder>(rows[g], first, columns, prefetch, panel + g * kPanelColumns);
    }
    for_token_groups<4>(
        range, [&](int64_t t, auto tokens) __attribute__((always_inline)) {
          float_panel<tokens.value>(task, panel, first, columns, range.token_begin + t, acc + t);
        });
  }
  store_tile(task, row, range.row_end, range, acc);
}

template <typename Decoder>
static void float_kernel(const LinearTask& task, const LinearRange& range) {
  for (int64_t row = range.row_begin; row < range.row_end; row += kTileGroups * kLanes) {
    float_tile<Decoder>(task, row, range);
  }
}

}  // namespace braid::BRAID_ISA

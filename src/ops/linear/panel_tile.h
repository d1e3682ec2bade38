#pragma once

// Products of weights in panels (quant/panels.h). A format says where codes and scales lie:
//
//   struct Format {
//     using Kind = CodeKind<…>;
//     using Block = PanelBlock<bytes of a row's block>;
//     static constexpr int kOuter, kInner;  // their product is the number of sub-blocks
//     template <int inner, int i> static Vu code(const Block& block, int outer);
//     static void load_scales(const Block& block, BlockScales<Format>& out);
//   };
//
// code() is word i of sub-block kInner · outer + inner, as CodeBlock has it.

#include "ops/linear/block_math.h"
#include "ops/linear/float_tile.h"
#include "quant/panels.h"

namespace braid::BRAID_ISA {

inline constexpr int kPanelVectors = kPanelRows / kLanes;

// One block of kLanes rows of a panel.
template <int kRowBlockBytes>
struct PanelBlock {
  static constexpr int kRowBytes = kRowBlockBytes;            // of one row
  static constexpr int kBytes = kPanelRows * kRowBlockBytes;  // of the panel
  static constexpr int kHalfBytes = kRowBlockBytes % 4 * kPanelRows;
  const uint8_t* halves;
  const uint8_t* words;

  // `lane`: the first of the rows.
  [[gnu::always_inline]] static PanelBlock at(const uint8_t* panel_block, int lane) {
    return {panel_block + 2 * lane, panel_block + kHalfBytes + 4 * lane};
  }
  [[gnu::always_inline]] Vu word(int64_t i) const {
    Vu v;
    std::memcpy(&v, words + 4 * kPanelRows * i, sizeof(v));
    return v;
  }
  [[gnu::always_inline]] Vf half() const { return load(reinterpret_cast<const Float16*>(halves)); }
};

// Scales and mins of a block, by group.
template <typename Format>
struct BlockScales {
  using Kind = typename Format::Kind;
  static constexpr int kGroups = Format::kOuter * Format::kInner * Kind::kGroups;
  Vf scale[kGroups];
  Vf min[Kind::kMin ? kGroups : 1];
};

// kLanes rows of a matrix in panels. Past the last panel the last one is repeated.
template <int kRowBlockBytes>
struct PanelRowGroup {
  const uint8_t* panel;
  int lane;

  [[gnu::always_inline]] static PanelRowGroup at(const LinearTask& task, int64_t first) {
    const int64_t last = (task.rows - 1) / kPanelRows, i = first / kPanelRows;
    return {task.weights + (i < last ? i : last) * kPanelRows * task.row_bytes,
            static_cast<int>(first % kPanelRows)};
  }
};

// For the tiles that work on blocks in memory.
template <typename Format>
struct PanelDecoder {
  using Kind = typename Format::Kind;
  using Rows = PanelRowGroup<Format::Block::kRowBytes>;
  static constexpr int kBlockBytes = Format::Block::kRowBytes;
  static constexpr int kSubBlocks = Format::kOuter * Format::kInner;

  [[gnu::noinline]] static void decode(const Rows& rows, int64_t offset, CodeBlock<Kind>* out) {
    const auto block = Format::Block::at(rows.panel + kPanelRows * offset, rows.lane);
    BlockScales<Format> scales;
    Format::load_scales(block, scales);
    for (int outer = 0; outer < Format::kOuter; ++outer) {
      unroll<0, Format::kInner>(BRAID_UNROLLED(inner) {
        CodeBlock<Kind>& sub = out[outer * Format::kInner + inner.value];
        unroll<0, 8>(BRAID_UNROLLED(i) {
          sub.codes[i.value] = Format::template code<inner.value, i.value>(block, outer);
        });
      });
    }
    for (int group = 0; group < BlockScales<Format>::kGroups; ++group) {
      CodeBlock<Kind>& sub = out[group / Kind::kGroups];
      sub.scale[group % Kind::kGroups] = scales.scale[group];
      if constexpr (Kind::kMin) sub.min[group % Kind::kGroups] = scales.min[group];
    }
  }
};

#if defined(BRAID_ISA_avx2) || defined(BRAID_ISA_avx512)
inline constexpr bool kMultipliesPanels = true;
#else
inline constexpr bool kMultipliesPanels = false;
#endif

// A panel's blocks [first, first + count) × kC tokens; adds to acc [kC][kPanelVectors]. What lies
// `ahead` bytes further on is asked for, evenly.
template <typename Format, int kC>
[[gnu::noinline]] static void panel_part(const LinearTask& task, const uint8_t* panel,
                                         int64_t first, int64_t count, int64_t token, int64_t ahead,
                                         Vf* acc) {
  using Kind = typename Format::Kind;
  using Block = typename Format::Block;
  constexpr int kR = kPanelVectors, kOuter = Format::kOuter, kInner = Format::kInner;
  const CodeInputs inputs(task, token, first * kOuter * kInner);
  Vf sums[kR][kC];
  unroll<0, kC>(BRAID_UNROLLED(c) {
    unroll<0, kR>(BRAID_UNROLLED(r) { sums[r.value][c.value] = acc[c.value * kR + r.value]; });
  });
  const uint8_t* at = panel + first * Block::kBytes;
  int64_t sub_block = 0;
  for (int64_t b = 0; b < count; ++b, at += Block::kBytes) {
    Block blocks[kR];
    BlockScales<Format> scales[kR];
    unroll<0, kR>(BRAID_UNROLLED(r) {
      blocks[r.value] = Block::at(at, kLanes * r.value);
      Format::load_scales(blocks[r.value], scales[r.value]);
    });
    for (int outer = 0; outer < kOuter; ++outer) {
      constexpr int kShare = Block::kBytes / kOuter;
      unroll<0, (kShare + 63) / 64>(BRAID_UNROLLED(line) {
        __builtin_prefetch(at + ahead + outer * kShare + 64 * line.value, 0, 2);
      });
      unroll<0, kInner>(BRAID_UNROLLED(inner) {
        CodeInput x[kC];
        unroll<0, kC>(BRAID_UNROLLED(c) { x[c.value] = inputs.at(c.value, sub_block); });
        ++sub_block;
        const auto group = [&](auto g) __attribute__((always_inline)) {
          return (outer * kInner + inner.value) * Kind::kGroups + g.value;
        };
        multiply_codes<Kind, kR, kC>(
            [&](auto r, auto i) __attribute__((always_inline)) {
              return Format::template code<inner.value, i.value>(blocks[r.value], outer);
            },
            [&](auto r, auto g)
                __attribute__((always_inline)) { return scales[r.value].scale[group(g)]; },
            [&](auto r, auto g)
                __attribute__((always_inline)) { return scales[r.value].min[group(g)]; },
            x, sums);
      });
    }
  }
  unroll<0, kC>(BRAID_UNROLLED(c) {
    unroll<0, kR>(BRAID_UNROLLED(r) { acc[c.value * kR + r.value] = sums[r.value][c.value]; });
  });
}

// Up to so many tokens a panel's codes go straight from its bytes into the products, a stretch that
// fits the first cache at a time; for more they are put into memory as bytes first.
inline constexpr int kFewTokens = 16;
inline constexpr int64_t kStretchBytes = 16 << 10;

template <typename Format>
[[gnu::noinline]] static void panel_of_few(const LinearTask& task, int64_t row,
                                           const LinearRange& range) {
  using Block = typename Format::Block;
  constexpr int64_t kStretch = kStretchBytes / Block::kBytes;
  const int64_t panel_bytes = kPanelRows * task.row_bytes;
  const uint8_t* panel = task.weights + row * task.row_bytes;
  const int64_t blocks = panel_bytes / Block::kBytes;
  const int64_t tokens = range.token_end - range.token_begin;
  Vf acc[kFewTokens * kPanelVectors];
  for (int64_t i = 0; i < tokens * kPanelVectors; ++i) acc[i] = Vf{};
  for (int64_t first = 0; first < blocks; first += kStretch) {
    const int64_t left = blocks - first;
    const int64_t count = left < kStretch ? left : kStretch;
    for_token_groups<kMostTokens>(
        range, [&](int64_t t, auto group) __attribute__((always_inline)) {
          panel_part<Format, group.value>(task, panel, first, count, range.token_begin + t,
                                          t == 0 ? kStretchBytes : 0, acc + t * kPanelVectors);
        });
  }
  for (int64_t t = 0; t < tokens; ++t) {
    float* y = task.y + (range.token_begin + t) * task.y_stride + row;
    for (int v = 0; v < kPanelVectors; ++v) {
      const int64_t lanes = range.row_end - row - v * kLanes;
      if (lanes > 0) store_lanes(y + v * kLanes, acc[t * kPanelVectors + v], lanes);
    }
  }
}

// kDirect: few tokens go the direct way, if the instruction set has enough registers.
template <typename Format, bool kDirect>
static void panel_int8_kernel(const LinearTask& task, const LinearRange& range) {
  if constexpr (kDirect && kMultipliesPanels) {
    if (range.token_end - range.token_begin <= kFewTokens) {
      for (int64_t row = range.row_begin; row < range.row_end; row += kPanelRows) {
        panel_of_few<Format>(task, row, range);
      }
      return;
    }
  }
  for (int64_t row = range.row_begin; row < range.row_end; row += kTileGroups * kLanes) {
    int8_tile<PanelDecoder<Format>>(task, row, range);
  }
}

}  // namespace braid::BRAID_ISA

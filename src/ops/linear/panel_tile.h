#pragma once

// Products of weights in panels (quant/panels.h). A format says where codes and scales lie:
//
//   struct Format {
//     using Kind = CodeKind<…>;
//     using Block = PanelBlock<bytes of a row's block>;
//     static constexpr int kOuter, kInner;  // their product is the number of sub-blocks
//     static Vu code(const Block& block, int outer, int inner, int i);
//     static void load_scales(const Block& block, BlockScales<Format>& out);
//     static constexpr PanelReading kReading;
//   };
//
// code() is word i of sub-block kInner · outer + inner, as CodeBlock has it. Formats without direct
// products lack kReading.

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
      BRAID_LOOP(int inner = 0; inner < Format::kInner; ++inner) {
        CodeBlock<Kind>& sub = out[outer * Format::kInner + inner];
        BRAID_LOOP(int i = 0; i < 8; ++i) sub.codes[i] = Format::code(block, outer, inner, i);
      }
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

// For up to so many tokens a panel's codes go straight from its bytes into the products; for more
// they are put into memory as bytes first.
inline constexpr int kFewTokens = 16;
// Most tokens that share a load of the weights: there is a register for each sum of a unit.
#if defined(BRAID_ISA_avx512)
inline constexpr int kMostFewTokens = 8;
#else
inline constexpr int kMostFewTokens = 4;
#endif

// A unit: kTileGroups vectors of rows that share a load of the inputs.
inline constexpr int kUnitPanels = kPanelVectors < kTileGroups ? kTileGroups / kPanelVectors : 1;
// Up to so many tokens memory is what limits. One thread hides its latency best if it reads several
// stretches of it side by side.
#if defined(BRAID_ISA_avx512)
inline constexpr int kStreamTokens = 4;
#else
inline constexpr int kStreamTokens = 3;
#endif
inline constexpr int kMostStreams = 4;
inline constexpr int kMostUnits = kMostStreams / kUnitPanels;
// With more than one group of tokens: what stays in the first cache meanwhile.
inline constexpr int64_t kStretchBytes = 8 << 10;

// How a format's panels are best read, by number of tokens: one, up to kStreamTokens, more.
struct PanelReading {
  int streams[3];      // stretches of panels that a thread reads side by side
  int ahead_bytes[3];  // how far on each is asked for in one pass; 0: left to the processor

  static constexpr int of(int64_t tokens) {
    return tokens == 1 ? 0 : tokens <= kStreamTokens ? 1 : 2;
  }
};

// Calls body(first token of the range, Index<how many>) for groups of at most kMost, 1, 4 or 8,
// that cover a few tokens.
template <int kMost, typename Body>
BRAID_INLINE void for_few_groups(const LinearRange& range, const Body& body) {
  const int64_t tokens = range.token_end - range.token_begin;
  int64_t t = 0;
  if constexpr (kMost == 8) {
    for (; t + 8 <= tokens; t += 8) body(t, Index<8>{});
    if (t + 6 <= tokens) {
      body(t, Index<6>{});
      t += 6;
    }
  }
  if constexpr (kMost > 1) {
    for (; t + 4 <= tokens; t += 4) body(t, Index<4>{});
    if (t + 2 <= tokens) {
      body(t, Index<2>{});
      t += 2;
    }
  }
  for (; t < tokens; ++t) body(t, Index<1>{});
}
// Whether that is one call.
template <int kMost>
BRAID_INLINE bool is_one_group(int64_t tokens) {
  return tokens == 1 || (kMost > 1 && (tokens == 2 || tokens == 4)) ||
         (kMost == 8 && (tokens == 6 || tokens == 8));
}

struct PanelUnits {
  const uint8_t* panels[kMostStreams];  // unit by unit
  int count;
};

// Blocks [first, first + count) of some units × kC tokens; adds to acc [unit][kFewTokens][vector].
// What lies `ahead` bytes further on is asked for, evenly.
template <typename Format, int kC>
[[gnu::noinline]] static void panel_part(const LinearTask& task, const PanelUnits& units,
                                         int64_t first, int64_t count, int64_t token, int64_t ahead,
                                         Vf* acc) {
  using Kind = typename Format::Kind;
  using Block = typename Format::Block;
  constexpr int kR = kTileGroups, kOuter = Format::kOuter, kInner = Format::kInner;
  constexpr bool kAsks = Format::kReading.ahead_bytes[PanelReading::of(kC)] > 0;
  const CodeInputs inputs(task, token, first * kOuter * kInner);
  for (int64_t b = 0; b < count; ++b) {
    for (int u = 0; u < units.count; ++u) {
      Vf* const unit_acc = acc + u * kFewTokens * kR;
      const uint8_t* at[kUnitPanels];
      BRAID_LOOP(int i = 0; i < kUnitPanels; ++i) {
        at[i] = units.panels[u * kUnitPanels + i] + (first + b) * Block::kBytes;
      }
      Block blocks[kR];
      BlockScales<Format> scales[kR];
      BRAID_LOOP(int r = 0; r < kR; ++r) {
        blocks[r] = Block::at(at[r / kPanelVectors % kUnitPanels], kLanes * (r % kPanelVectors));
        Format::load_scales(blocks[r], scales[r]);
      }
      Vf sums[kR][kC];
      BRAID_LOOP(int c = 0; c < kC; ++c) {
        BRAID_LOOP(int r = 0; r < kR; ++r) sums[r][c] = unit_acc[c * kR + r];
      }
      int64_t sub_block = b * kOuter * kInner;
      for (int outer = 0; outer < kOuter; ++outer) {
        if constexpr (kAsks) {
          constexpr int kShare = Block::kBytes / kOuter;
          BRAID_LOOP(int i = 0; i < kUnitPanels; ++i) {
            BRAID_LOOP(int line = 0; line < kShare; line += 64) {
              __builtin_prefetch(at[i] + ahead + outer * kShare + line);
            }
          }
        }
        BRAID_LOOP(int inner = 0; inner < kInner; ++inner) {
          CodeInput x[kC];
          BRAID_LOOP(int c = 0; c < kC; ++c) x[c] = inputs.at(c, sub_block);
          ++sub_block;
          const int first_group = (outer * kInner + inner) * Kind::kGroups;
          multiply_codes<Kind, kR, kC>(
              [&](int r, int i) __attribute__((always_inline)) {
                return Format::code(blocks[r], outer, inner, i);
              },
              [&](int r, int g)
                  __attribute__((always_inline)) { return scales[r].scale[first_group + g]; },
              [&](int r, int g)
                  __attribute__((always_inline)) { return scales[r].min[first_group + g]; },
              x, sums);
        }
      }
      BRAID_LOOP(int c = 0; c < kC; ++c) {
        BRAID_LOOP(int r = 0; r < kR; ++r) unit_acc[c * kR + r] = sums[r][c];
      }
    }
  }
}

// Panels panel[0], panel[1], … × the tokens of the range. `rows`: how many rows each has that
// count.
template <typename Format, int kMost>
[[gnu::noinline]] static void units_of_few(const LinearTask& task, const int64_t* panels,
                                           const int64_t* rows, int num_units,
                                           const LinearRange& range) {
  using Block = typename Format::Block;
  const int64_t panel_bytes = kPanelRows * task.row_bytes;
  const int64_t blocks = panel_bytes / Block::kBytes;
  const int64_t tokens = range.token_end - range.token_begin;
  PanelUnits units;
  units.count = num_units;
  for (int p = 0; p < num_units * kUnitPanels; ++p) {
    units.panels[p] = task.weights + panels[p] * panel_bytes;
  }
  Vf acc[kMostUnits * kFewTokens * kTileGroups];
  for (int u = 0; u < num_units; ++u) {
    for (int64_t i = 0; i < tokens * kTileGroups; ++i) {
      acc[u * kFewTokens * kTileGroups + i] = Vf{};
    }
  }
  const bool one_pass = is_one_group<kMost>(tokens);
  constexpr int kManyStreams = Format::kReading.streams[2];
  constexpr int64_t kStretch =
      kStretchBytes / (Block::kBytes * (kManyStreams > kUnitPanels ? kManyStreams : kUnitPanels));
  const int64_t stretch = one_pass ? blocks : kStretch;
  const int64_t ahead =
      one_pass ? Format::kReading.ahead_bytes[PanelReading::of(tokens)] : kStretch * Block::kBytes;
  for (int64_t first = 0; first < blocks; first += stretch) {
    const int64_t left = blocks - first;
    const int64_t count = left < stretch ? left : stretch;
    for_few_groups<kMost>(
        range, [&](int64_t t, auto group) __attribute__((always_inline)) {
          panel_part<Format, group.value>(task, units, first, count, range.token_begin + t,
                                          t == 0 ? ahead : 0, acc + t * kTileGroups);
        });
  }
  for (int u = 0; u < num_units; ++u) {
    for (int r = 0; r < kTileGroups; ++r) {
      const int p = u * kUnitPanels + r / kPanelVectors % kUnitPanels;
      const int64_t lane = r % kPanelVectors * kLanes;
      if (rows[p] <= lane) continue;
      for (int64_t t = 0; t < tokens; ++t) {
        store_lanes(
            task.y + (range.token_begin + t) * task.y_stride + panels[p] * kPanelRows + lane,
            acc[(u * kFewTokens + t) * kTileGroups + r], rows[p] - lane);
      }
    }
  }
}

// The panels of a range in runs of neighbours side by side, as many as the format has streams, or
// fewer if there are few of them.
template <typename Format, int kMost>
static void panels_of_few(const LinearTask& task, const LinearRange& range) {
  const int64_t tokens = range.token_end - range.token_begin;
  const int64_t end = (range.row_end + kPanelRows - 1) / kPanelRows;
  const int most_streams = Format::kReading.streams[PanelReading::of(tokens)];
  const int64_t most_units = most_streams > kUnitPanels ? most_streams / kUnitPanels : 1;
  int64_t panel = range.row_begin / kPanelRows;
  while (panel < end) {
    const int64_t left = end - panel;
    const int64_t wanted = (left + kUnitPanels - 1) / kUnitPanels;
    const int num_units = static_cast<int>(wanted < most_units ? wanted : most_units);
    const int64_t streams = num_units * kUnitPanels;
    const int64_t run = left < streams ? 1 : left / streams;
    for (int64_t j = 0; j < run; ++j) {
      int64_t panels[kMostStreams], rows[kMostStreams];
      for (int64_t s = 0; s < streams; ++s) {
        const int64_t i = panel + s * run + j;
        panels[s] = i < end ? i : end - 1;
        rows[s] = i < end ? range.row_end - i * kPanelRows : 0;
        if (rows[s] > kPanelRows) rows[s] = kPanelRows;
      }
      units_of_few<Format, kMost>(task, panels, rows, num_units, range);
    }
    panel += run * streams;
  }
}

// Up to kDirectTokens go the direct way, if the instruction set has enough registers.
template <typename Format, int kDirectTokens>
static void panel_int8_kernel(const LinearTask& task, const LinearRange& range) {
  if constexpr (kMultipliesPanels && kDirectTokens > 0) {
    if (range.token_end - range.token_begin <= kDirectTokens) {
      constexpr int kMost = kDirectTokens < kMostFewTokens ? kDirectTokens : kMostFewTokens;
      panels_of_few<Format, kMost>(task, range);
      return;
    }
  }
  for (int64_t row = range.row_begin; row < range.row_end; row += kTileGroups * kLanes) {
    int8_tile<PanelDecoder<Format>>(task, row, range);
  }
}

template <typename Format, int kDirectTokens>
constexpr void add_panel_format(LinearKernels& table, FormatId id) {
  table.f32[static_cast<int>(id)] = float_kernel<PanelDecoder<Format>>;
  table.int8[static_cast<int>(id)] = panel_int8_kernel<Format, kDirectTokens>;
}

}  // namespace braid::BRAID_ISA

#include "ops/linear/group_math.h"
#include "ops/linear/panel_tile.h"

namespace braid::BRAID_ISA {
namespace {

// A group of kLanes rows of a panel, at the first byte of the panel's column of groups.
template <typename Block>
struct GroupPanel {
  using Traits = GroupTraits<Block>;
  static constexpr int kHalfBytes = Traits::kCodesOffset % 4 * kPanelRows;
  static constexpr int kHeaderWords = Traits::kCodesOffset / 4;
  const uint8_t* halves;
  const uint8_t* words;

  [[gnu::always_inline]] static GroupPanel at(const uint8_t* column, int lane) {
    return {column + 2 * lane, column + kHalfBytes + 4 * lane};
  }
  [[gnu::always_inline]] Vu word(int64_t i) const {
    Vu v;
    std::memcpy(&v, words + 4 * kPanelRows * i, sizeof(v));
    return v;
  }
  [[gnu::always_inline]] Vu half_words() const {
    typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
    Halves h;
    std::memcpy(&h, halves, sizeof(h));
    return __builtin_convertvector(h, Vu);
  }
  [[gnu::always_inline]] GroupHeads heads() const {
    return group_heads<Block>(
        [&](auto i) __attribute__((always_inline)) { return word(i.value); },
        [&]() __attribute__((always_inline)) { return half_words(); });
  }
  // Word i of sub-block s.
  [[gnu::always_inline]] Vu codes(int s, int i, const GroupHeads& heads) const {
    const Vu nibbles = word(kHeaderWords + 4 * s + i % 4) >> (i < 4 ? 0 : 4);
    return group_codes<Block>(nibbles & 0x0f0f0f0f, heads);
  }
};

template <typename Block>
struct GroupPanelDecoder {
  using Traits = GroupTraits<Block>;
  using Kind = typename Traits::Kind;
  using Rows = PanelRowGroup<sizeof(Block)>;
  static constexpr int kBlockBytes = sizeof(Block), kSubBlocks = Traits::kSubBlocks;

  [[gnu::noinline]] static void decode(const Rows& rows, int64_t offset, CodeBlock<Kind>* out) {
    const auto group = GroupPanel<Block>::at(rows.panel + kPanelRows * offset, rows.lane);
    const GroupHeads heads = group.heads();
    for (int s = 0; s < kSubBlocks; ++s) {
      BRAID_LOOP(int i = 0; i < 8; ++i) out[s].codes[i] = group.codes(s, i, heads);
      out[s].scale[0] = heads.scale;
      if constexpr (Kind::kMin) out[s].min[0] = group_min<Block>(heads);
    }
  }
};

// A panel's groups [first, first + count) × kC tokens; adds to acc [kC][kPanelVectors]. What lies
// `ahead` bytes further on is asked for, evenly.
template <typename Block, int kC>
[[gnu::noinline]] static void group_part(const LinearTask& task, const uint8_t* panel,
                                         int64_t first, int64_t count, int64_t token, int64_t ahead,
                                         Vf* acc) {
  using Traits = GroupTraits<Block>;
  using Kind = typename Traits::Kind;
  constexpr int kR = kPanelVectors, kBytes = kPanelRows * static_cast<int>(sizeof(Block));
  const CodeInputs inputs(task, token, first * Traits::kSubBlocks);
  Vf sums[kR][kC];
  unroll<0, kC>(BRAID_UNROLLED(c) {
    unroll<0, kR>(BRAID_UNROLLED(r) { sums[r.value][c.value] = acc[c.value * kR + r.value]; });
  });
  const uint8_t* at = panel + first * kBytes;
  int64_t sub_block = 0;
  for (int64_t g = 0; g < count; ++g, at += kBytes) {
    GroupPanel<Block> groups[kR];
    GroupHeads heads[kR];
    Vf mins[kR];
    unroll<0, kR>(BRAID_UNROLLED(r) {
      groups[r.value] = GroupPanel<Block>::at(at, kLanes * r.value);
      heads[r.value] = groups[r.value].heads();
      if constexpr (Kind::kMin) mins[r.value] = group_min<Block>(heads[r.value]);
    });
    for (int s = 0; s < Traits::kSubBlocks; ++s) {
      constexpr int kShare = kBytes / Traits::kSubBlocks;
      unroll<0, (kShare + 63) / 64>(BRAID_UNROLLED(line) {
        __builtin_prefetch(at + ahead + s * kShare + 64 * line.value, 0, 2);
      });
      CodeInput x[kC];
      unroll<0, kC>(BRAID_UNROLLED(c) { x[c.value] = inputs.at(c.value, sub_block); });
      ++sub_block;
      multiply_codes<Kind, kR, kC>(
          [&](int r, int i)
              __attribute__((always_inline)) { return groups[r].codes(s, i, heads[r]); },
          [&](int r, int) __attribute__((always_inline)) { return heads[r].scale; },
          [&](int r, int) __attribute__((always_inline)) { return mins[r]; }, x, sums);
    }
  }
  unroll<0, kC>(BRAID_UNROLLED(c) {
    unroll<0, kR>(BRAID_UNROLLED(r) { acc[c.value * kR + r.value] = sums[r.value][c.value]; });
  });
}

// One panel × up to kFewTokens tokens, whose codes go straight from its bytes into the products.
template <typename Block>
[[gnu::noinline]] static void group_panel_of_few(const LinearTask& task, int64_t row,
                                                 const LinearRange& range) {
  constexpr int64_t kBytes = kPanelRows * sizeof(Block);
  constexpr int64_t kStretch = kStretchBytes / kBytes;
  const uint8_t* panel = task.weights + row * task.row_bytes;
  const int64_t groups = kPanelRows * task.row_bytes / kBytes;
  const int64_t tokens = range.token_end - range.token_begin;
  Vf acc[kFewTokens * kPanelVectors];
  for (int64_t i = 0; i < tokens * kPanelVectors; ++i) acc[i] = Vf{};
  for (int64_t first = 0; first < groups; first += kStretch) {
    const int64_t left = groups - first;
    const int64_t count = left < kStretch ? left : kStretch;
    for_token_groups<kMostTokens>(
        range, [&](int64_t t, auto group) __attribute__((always_inline)) {
          group_part<Block, group.value>(task, panel, first, count, range.token_begin + t,
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

template <typename Block>
static void group_panel_int8(const LinearTask& task, const LinearRange& range) {
  if constexpr (kMultipliesPanels) {
    if (range.token_end - range.token_begin <= kFewTokens) {
      for (int64_t row = range.row_begin; row < range.row_end; row += kPanelRows) {
        group_panel_of_few<Block>(task, row, range);
      }
      return;
    }
  }
  for (int64_t row = range.row_begin; row < range.row_end; row += kTileGroups * kLanes) {
    int8_tile<GroupPanelDecoder<Block>>(task, row, range);
  }
}

constexpr LinearKernels make_table() {
  LinearKernels table{};
  for_group_formats([&](auto* pointer, FormatId id) {
    using Block = std::remove_pointer_t<decltype(pointer)>;
    table.f32[static_cast<int>(id)] = float_kernel<GroupPanelDecoder<Block>>;
    table.int8[static_cast<int>(id)] = group_panel_int8<Block>;
  });
  return table;
}

}  // namespace

const LinearKernels kGroupPanelKernels = make_table();

}  // namespace braid::BRAID_ISA

#include "ops/linear/panel_tile.h"
#include "quant/schemes/block_layouts.h"

namespace braid::BRAID_ISA {
namespace {

inline constexpr uint32_t kNibbles = 0x0f0f0f0f;

// Several places of a block are read side by side, too many for the processor's own prefetchers.
#if defined(BRAID_ISA_avx512)
constexpr PanelReading kKReading = {{2, 2, 2}, {4608, 4608, 4608}};
#else
constexpr PanelReading kKReading = {{2, 2, 1}, {4608, 4608, 9216}};
#endif

template <typename Format>
BRAID_INLINE void load_q4_k_scales(const typename Format::Block& block, BlockScales<Format>& out) {
  const Vu head[4] = {block.word(0), block.word(1), block.word(2), block.word(3)};
  q4_k_scales(
      head, [&](auto s, Vf scale, Vf min) __attribute__((always_inline)) {
        out.scale[s.value] = scale;
        out.min[s.value] = min;
      });
}

// Words: 4 of scales; 8 of nibbles for each two sub-blocks.
struct Q4KPanels {
  using Kind = CodeKind<false, 15, 1, true, 0>;
  using Block = PanelBlock<sizeof(BlockQ4K)>;
  static constexpr int kOuter = 4, kInner = 2;
  static constexpr PanelReading kReading = kKReading;
  [[gnu::always_inline]] static Vu code(const Block& block, int outer, int inner, int i) {
    return (block.word(4 + 8 * outer + i) >> (4 * inner)) & kNibbles;
  }
  [[gnu::always_inline]] static void load_scales(const Block& block, BlockScales<Q4KPanels>& out) {
    load_q4_k_scales<Q4KPanels>(block, out);
  }
};

// Words: 4 of scales; 8 of fifth bits, bit s for sub-block s; nibbles as q4_k.
struct Q5KPanels {
  using Kind = CodeKind<false, 31, 1, true, 0>;
  using Block = PanelBlock<sizeof(BlockQ5K)>;
  static constexpr int kOuter = 4, kInner = 2;
  static constexpr PanelReading kReading = kKReading;
  [[gnu::always_inline]] static Vu code(const Block& block, int outer, int inner, int i) {
    const Vu low = (block.word(12 + 8 * outer + i) >> (4 * inner)) & kNibbles;
    const Vu bits = block.word(4 + i) >> (2 * outer + inner);
    return low | ((bits & 0x01010101) << 4);
  }
  [[gnu::always_inline]] static void load_scales(const Block& block, BlockScales<Q5KPanels>& out) {
    load_q4_k_scales<Q5KPanels>(block, out);
  }
};

// Words: 4 of scales; 8 of pairs of bits for each four sub-blocks; d and dmin.
struct Q2KPanels {
  using Kind = CodeKind<false, 3, 2, true, 0>;
  using Block = PanelBlock<sizeof(BlockQ2K)>;
  static constexpr int kOuter = 2, kInner = 4;
  [[gnu::always_inline]] static Vu code(const Block& block, int outer, int inner, int i) {
    return (block.word(4 + 8 * outer + i) >> (2 * inner)) & 0x03030303;
  }
  [[gnu::always_inline]] static void load_scales(const Block& block, BlockScales<Q2KPanels>& out) {
    const Vu scales[4] = {block.word(0), block.word(1), block.word(2), block.word(3)};
    Vf d, dmin;
    split_halves(block.word(20), d, dmin);
    q2_k_scales(
        scales, d, dmin, [&](auto g, Vf scale, Vf min) __attribute__((always_inline)) {
          out.scale[g.value] = scale;
          out.min[g.value] = min;
        });
  }
};

// Words: 8 of third bits, bit s for sub-block s; 8 of pairs of bits for each four sub-blocks; 3 of
// scales.
struct Q3KPanels {
  using Kind = CodeKind<false, 7, 2, false, 2>;
  using Block = PanelBlock<sizeof(BlockQ3K)>;
  static constexpr int kOuter = 2, kInner = 4;
  [[gnu::always_inline]] static Vu code(const Block& block, int outer, int inner, int i) {
    const Vu low = (block.word(8 + 8 * outer + i) >> (2 * inner)) & 0x03030303;
    const Vu top = (block.word(i) >> (4 * outer + inner)) & 0x01010101;
    return low | (top << 2);
  }
  [[gnu::always_inline]] static void load_scales(const Block& block, BlockScales<Q3KPanels>& out) {
    const Vu packed[3] = {block.word(24), block.word(25), block.word(26)};
    q3_k_scales(
        packed, block.half(), [&](auto g, Vf scale) __attribute__((always_inline)) {
          out.scale[g.value] = scale;
        });
  }
};

// Words: for each four sub-blocks 16 of nibbles (low ones: the first two); 8 of pairs of upper bits
// for each four sub-blocks; 4 of scales.
struct Q6KPanels {
  using Kind = CodeKind<false, 63, 2, false, 5>;
  using Block = PanelBlock<sizeof(BlockQ6K)>;
  static constexpr int kOuter = 2, kInner = 4;
  static constexpr PanelReading kReading = kKReading;
  [[gnu::always_inline]] static Vu code(const Block& block, int outer, int inner, int i) {
    const Vu low = block.word(16 * outer + 8 * (inner % 2) + i);
    const Vu high = block.word(32 + 8 * outer + i);
    const Vu bits = inner < 2 ? high << (4 - 2 * inner) : high >> (2 * inner - 4);
    return ((inner < 2 ? low : low >> 4) & kNibbles) | (bits & 0x30303030);
  }
  [[gnu::always_inline]] static void load_scales(const Block& block, BlockScales<Q6KPanels>& out) {
    const Vu scales[4] = {block.word(48), block.word(49), block.word(50), block.word(51)};
    q6_k_scales(
        scales, block.half(), [&](auto g, Vf scale) __attribute__((always_inline)) {
          out.scale[g.value] = scale;
        });
  }
};

// With more tokens it pays to unpack these blocks once, into memory.
#if defined(BRAID_ISA_avx512)
constexpr int kFewDirectTokens = 4;
#else
constexpr int kFewDirectTokens = 8;
#endif

constexpr LinearKernels make_table() {
  LinearKernels table{};
  add_panel_format<Q2KPanels, 0>(table, FormatId::kQ2K);
  add_panel_format<Q3KPanels, 0>(table, FormatId::kQ3K);
  add_panel_format<Q4KPanels, kFewDirectTokens>(table, FormatId::kQ4K);
  add_panel_format<Q5KPanels, kFewDirectTokens>(table, FormatId::kQ5K);
  add_panel_format<Q6KPanels, kFewDirectTokens>(table, FormatId::kQ6K);
  return table;
}

}  // namespace

const LinearKernels kKPanelKernels = make_table();

}  // namespace braid::BRAID_ISA

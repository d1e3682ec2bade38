#include "ops/linear/panel_tile.h"
#include "quant/schemes/block_layouts.h"

namespace braid::BRAID_ISA {
namespace {

inline constexpr uint32_t kNibbles = 0x0f0f0f0f;

// Word i of a sub-block of 32 nibbles in four words: low ones are values 0 to 15, high ones 16 to
// 31.
template <int i, typename Block>
BRAID_INLINE Vu nibbles_of_32(const Block& block, int first_word) {
  const Vu words = block.word(first_word + i % 4);
  return (i < 4 ? words : words >> 4) & kNibbles;
}

struct Q8_0Panels {
  using Kind = SignedKind;
  using Block = PanelBlock<sizeof(BlockQ8_0)>;
  static constexpr int kOuter = 1, kInner = 1;
  template <int inner, int i>
  [[gnu::always_inline]] static Vu code(const Block& block, int) {
    return block.word(i) ^ splat_u32(kSignedBias);
  }
  [[gnu::always_inline]] static void load_scales(const Block& block, BlockScales<Q8_0Panels>& out) {
    out.scale[0] = block.half();
  }
};

struct Q4_0Panels {
  using Kind = CodeKind<false, 15, 1, false, 3>;
  using Block = PanelBlock<sizeof(BlockQ4_0)>;
  static constexpr int kOuter = 1, kInner = 1;
  template <int inner, int i>
  [[gnu::always_inline]] static Vu code(const Block& block, int) {
    return nibbles_of_32<i>(block, 0);
  }
  [[gnu::always_inline]] static void load_scales(const Block& block, BlockScales<Q4_0Panels>& out) {
    out.scale[0] = block.half();
  }
};

struct Iq4NlPanels {
  using Kind = SignedKind;
  using Block = PanelBlock<sizeof(BlockIq4Nl)>;
  static constexpr int kOuter = 1, kInner = 1;
  template <int inner, int i>
  [[gnu::always_inline]] static Vu code(const Block& block, int) {
    return look_up(kIq4NlValues, nibbles_of_32<i>(block, 0)) ^ splat_u32(kSignedBias);
  }
  [[gnu::always_inline]] static void load_scales(const Block& block,
                                                 BlockScales<Iq4NlPanels>& out) {
    out.scale[0] = block.half();
  }
};

// Words: d and m; nibbles.
struct Q4_1Panels {
  using Kind = CodeKind<false, 15, 1, true, 0>;
  using Block = PanelBlock<sizeof(BlockQ4_1)>;
  static constexpr int kOuter = 1, kInner = 1;
  template <int inner, int i>
  [[gnu::always_inline]] static Vu code(const Block& block, int) {
    return nibbles_of_32<i>(block, 1);
  }
  [[gnu::always_inline]] static void load_scales(const Block& block, BlockScales<Q4_1Panels>& out) {
    split_halves(block.word(0), out.scale[0], out.min[0]);
  }
};

// Words: fifth bits; nibbles.
struct Q5_0Panels {
  using Kind = CodeKind<false, 31, 1, false, 4>;
  using Block = PanelBlock<sizeof(BlockQ5_0)>;
  static constexpr int kOuter = 1, kInner = 1;
  template <int inner, int i>
  [[gnu::always_inline]] static Vu code(const Block& block, int) {
    return nibbles_of_32<i>(block, 1) | fifth_bits<i>(block.word(0));
  }
  [[gnu::always_inline]] static void load_scales(const Block& block, BlockScales<Q5_0Panels>& out) {
    out.scale[0] = block.half();
  }
};

// Words: d and m; fifth bits; nibbles.
struct Q5_1Panels {
  using Kind = CodeKind<false, 31, 1, true, 0>;
  using Block = PanelBlock<sizeof(BlockQ5_1)>;
  static constexpr int kOuter = 1, kInner = 1;
  template <int inner, int i>
  [[gnu::always_inline]] static Vu code(const Block& block, int) {
    return nibbles_of_32<i>(block, 2) | fifth_bits<i>(block.word(1));
  }
  [[gnu::always_inline]] static void load_scales(const Block& block, BlockScales<Q5_1Panels>& out) {
    split_halves(block.word(0), out.scale[0], out.min[0]);
  }
};

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
  template <int inner, int i>
  [[gnu::always_inline]] static Vu code(const Block& block, int outer) {
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
  template <int inner, int i>
  [[gnu::always_inline]] static Vu code(const Block& block, int outer) {
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
  template <int inner, int i>
  [[gnu::always_inline]] static Vu code(const Block& block, int outer) {
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
  template <int inner, int i>
  [[gnu::always_inline]] static Vu code(const Block& block, int outer) {
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
  template <int inner, int i>
  [[gnu::always_inline]] static Vu code(const Block& block, int outer) {
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

template <typename Format, bool kDirect>
constexpr void add_format(LinearKernels& table, FormatId id) {
  table.f32[static_cast<int>(id)] = float_kernel<PanelDecoder<Format>>;
  table.int8[static_cast<int>(id)] = panel_int8_kernel<Format, kDirect>;
}

constexpr LinearKernels make_table() {
  LinearKernels table{};
  add_format<Q8_0Panels, true>(table, FormatId::kQ8_0);
  add_format<Q4_0Panels, true>(table, FormatId::kQ4_0);
  add_format<Q4_1Panels, false>(table, FormatId::kQ4_1);
  add_format<Q5_0Panels, false>(table, FormatId::kQ5_0);
  add_format<Q5_1Panels, false>(table, FormatId::kQ5_1);
  add_format<Iq4NlPanels, true>(table, FormatId::kIq4Nl);
  add_format<Q2KPanels, false>(table, FormatId::kQ2K);
  add_format<Q3KPanels, false>(table, FormatId::kQ3K);
  add_format<Q4KPanels, true>(table, FormatId::kQ4K);
  add_format<Q5KPanels, true>(table, FormatId::kQ5K);
  add_format<Q6KPanels, true>(table, FormatId::kQ6K);
  return table;
}

}  // namespace

const LinearKernels kPanelKernels = make_table();

}  // namespace braid::BRAID_ISA

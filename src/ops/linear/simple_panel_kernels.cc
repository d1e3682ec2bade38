#include "ops/linear/panel_tile.h"
#include "quant/schemes/block_layouts.h"

namespace braid::BRAID_ISA {
namespace {

inline constexpr uint32_t kNibbles = 0x0f0f0f0f;

// With AVX2 (Zen 3) asking for the weights of up to three tokens takes up to half of the read rate
// away: the processor's own prefetchers follow four streams by themselves.
#if defined(BRAID_ISA_avx512)
constexpr PanelReading kQ8Reading = {{4, 4, 2}, {544, 2304, 4608}};
constexpr PanelReading kNibblesReading = {{4, 4, 2}, {2304, 2304, 4608}};
#else
constexpr PanelReading kQ8Reading = {{4, 4, 2}, {0, 0, 4608}};
constexpr PanelReading kNibblesReading = {{4, 4, 2}, {288, 0, 4608}};
#endif

// Word i of a sub-block of 32 nibbles in four words: low ones are values 0 to 15, high ones 16 to
// 31.
template <typename Block>
BRAID_INLINE Vu nibbles_of_32(const Block& block, int first_word, int i) {
  const Vu words = block.word(first_word + i % 4);
  return (i < 4 ? words : words >> 4) & kNibbles;
}

struct Q8_0Panels {
  using Kind = SignedKind;
  using Block = PanelBlock<sizeof(BlockQ8_0)>;
  static constexpr int kOuter = 1, kInner = 1;
  static constexpr PanelReading kReading = kQ8Reading;
  [[gnu::always_inline]] static Vu code(const Block& block, int, int, int i) {
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
  static constexpr PanelReading kReading = kNibblesReading;
  [[gnu::always_inline]] static Vu code(const Block& block, int, int, int i) {
    return nibbles_of_32(block, 0, i);
  }
  [[gnu::always_inline]] static void load_scales(const Block& block, BlockScales<Q4_0Panels>& out) {
    out.scale[0] = block.half();
  }
};

struct Iq4NlPanels {
  using Kind = SignedKind;
  using Block = PanelBlock<sizeof(BlockIq4Nl)>;
  static constexpr int kOuter = 1, kInner = 1;
  static constexpr PanelReading kReading = kNibblesReading;
  [[gnu::always_inline]] static Vu code(const Block& block, int, int, int i) {
    return look_up(kIq4NlValues, nibbles_of_32(block, 0, i)) ^ splat_u32(kSignedBias);
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
  [[gnu::always_inline]] static Vu code(const Block& block, int, int, int i) {
    return nibbles_of_32(block, 1, i);
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
  [[gnu::always_inline]] static Vu code(const Block& block, int, int, int i) {
    return nibbles_of_32(block, 1, i) | fifth_bits(block.word(0), i);
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
  [[gnu::always_inline]] static Vu code(const Block& block, int, int, int i) {
    return nibbles_of_32(block, 2, i) | fifth_bits(block.word(1), i);
  }
  [[gnu::always_inline]] static void load_scales(const Block& block, BlockScales<Q5_1Panels>& out) {
    split_halves(block.word(0), out.scale[0], out.min[0]);
  }
};

constexpr LinearKernels make_table() {
  LinearKernels table{};
  add_panel_format<Q8_0Panels, kFewTokens>(table, FormatId::kQ8_0);
  add_panel_format<Q4_0Panels, kFewTokens>(table, FormatId::kQ4_0);
  add_panel_format<Q4_1Panels, 0>(table, FormatId::kQ4_1);
  add_panel_format<Q5_0Panels, 0>(table, FormatId::kQ5_0);
  add_panel_format<Q5_1Panels, 0>(table, FormatId::kQ5_1);
  add_panel_format<Iq4NlPanels, kFewTokens>(table, FormatId::kIq4Nl);
  return table;
}

}  // namespace

const LinearKernels kSimplePanelKernels = make_table();

}  // namespace braid::BRAID_ISA

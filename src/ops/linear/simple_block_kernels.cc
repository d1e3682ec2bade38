#include <cstddef>

#include "ops/linear/block_math.h"
#include "ops/linear/float_tile.h"
#include "quant/schemes/block_layouts.h"

namespace braid::BRAID_ISA {
namespace {

// Sixteen bytes of nibbles: low ones are values 0 to 15, high ones 16 to 31.
BRAID_INLINE void load_nibbles(const RowGroup& rows, int64_t offset, Vu* codes) {
  Vu words[4];
  transpose16(rows, offset, words);
  unroll<0, 4>(BRAID_UNROLLED(i) {
    codes[i.value] = words[i.value] & 0x0f0f0f0f;
    codes[i.value + 4] = (words[i.value] >> 4) & 0x0f0f0f0f;
  });
}

BRAID_INLINE void add_fifth_bits(Vu bits, Vu* codes) {
  BRAID_LOOP(int i = 0; i < 8; ++i) codes[i] |= fifth_bits(bits, i);
}

struct Q8_0Decoder {
  using Kind = SignedKind;
  using Rows = RowGroup;
  static constexpr int kBlockBytes = sizeof(BlockQ8_0), kSubBlocks = 1;
  [[gnu::always_inline]] static void decode(const RowGroup& rows, int64_t offset,
                                            CodeBlock<Kind>* out) {
    Vu words[8];
    transpose32(rows, offset + offsetof(BlockQ8_0, q), words);
    unroll<0, 8>(
        BRAID_UNROLLED(i) { out->codes[i.value] = words[i.value] ^ splat_u32(kSignedBias); });
    out->scale[0] = load_halves(rows, offset);
  }
};

struct Q4_0Decoder {
  using Kind = CodeKind<false, 15, 1, false, 3>;
  using Rows = RowGroup;
  static constexpr int kBlockBytes = sizeof(BlockQ4_0), kSubBlocks = 1;
  [[gnu::always_inline]] static void decode(const RowGroup& rows, int64_t offset,
                                            CodeBlock<Kind>* out) {
    load_nibbles(rows, offset + offsetof(BlockQ4_0, q), out->codes);
    out->scale[0] = load_halves(rows, offset);
  }
};

struct Q4_1Decoder {
  using Kind = CodeKind<false, 15, 1, true, 0>;
  using Rows = RowGroup;
  static constexpr int kBlockBytes = sizeof(BlockQ4_1), kSubBlocks = 1;
  [[gnu::always_inline]] static void decode(const RowGroup& rows, int64_t offset,
                                            CodeBlock<Kind>* out) {
    load_nibbles(rows, offset + offsetof(BlockQ4_1, q), out->codes);
    split_halves(load_words(rows, offset), out->scale[0], out->min[0]);
  }
};

struct Q5_0Decoder {
  using Kind = CodeKind<false, 31, 1, false, 4>;
  using Rows = RowGroup;
  static constexpr int kBlockBytes = sizeof(BlockQ5_0), kSubBlocks = 1;
  [[gnu::always_inline]] static void decode(const RowGroup& rows, int64_t offset,
                                            CodeBlock<Kind>* out) {
    load_nibbles(rows, offset + offsetof(BlockQ5_0, q), out->codes);
    add_fifth_bits(load_words(rows, offset + offsetof(BlockQ5_0, high)), out->codes);
    out->scale[0] = load_halves(rows, offset);
  }
};

struct Q5_1Decoder {
  using Kind = CodeKind<false, 31, 1, true, 0>;
  using Rows = RowGroup;
  static constexpr int kBlockBytes = sizeof(BlockQ5_1), kSubBlocks = 1;
  [[gnu::always_inline]] static void decode(const RowGroup& rows, int64_t offset,
                                            CodeBlock<Kind>* out) {
    load_nibbles(rows, offset + offsetof(BlockQ5_1, q), out->codes);
    add_fifth_bits(load_words(rows, offset + offsetof(BlockQ5_1, high)), out->codes);
    split_halves(load_words(rows, offset), out->scale[0], out->min[0]);
  }
};

struct Iq4NlDecoder {
  using Kind = SignedKind;
  using Rows = RowGroup;
  static constexpr int kBlockBytes = sizeof(BlockIq4Nl), kSubBlocks = 1;
  [[gnu::always_inline]] static void decode(const RowGroup& rows, int64_t offset,
                                            CodeBlock<Kind>* out) {
    Vu nibbles[8];
    load_nibbles(rows, offset + offsetof(BlockIq4Nl, q), nibbles);
    unroll<0, 8>(BRAID_UNROLLED(i) {
      out->codes[i.value] = look_up(kIq4NlValues, nibbles[i.value]) ^ splat_u32(kSignedBias);
    });
    out->scale[0] = load_halves(rows, offset);
  }
};

template <typename Decoder>
constexpr void add_format(LinearKernels& table, FormatId id) {
  table.f32[static_cast<int>(id)] = float_kernel<Decoder>;
  table.int8[static_cast<int>(id)] = int8_kernel<Decoder>;
}

constexpr LinearKernels make_table() {
  LinearKernels table{};
  add_format<Q8_0Decoder>(table, FormatId::kQ8_0);
  add_format<Q4_0Decoder>(table, FormatId::kQ4_0);
  add_format<Q4_1Decoder>(table, FormatId::kQ4_1);
  add_format<Q5_0Decoder>(table, FormatId::kQ5_0);
  add_format<Q5_1Decoder>(table, FormatId::kQ5_1);
  add_format<Iq4NlDecoder>(table, FormatId::kIq4Nl);
  return table;
}

}  // namespace

const LinearKernels kSimpleBlockKernels = make_table();

}  // namespace braid::BRAID_ISA

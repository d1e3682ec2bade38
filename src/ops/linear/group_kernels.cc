#include "ops/linear/float_tile.h"
#include "ops/linear/group_math.h"

namespace braid::BRAID_ISA {
namespace {

template <typename Block>
struct GroupDecoder {
  using Traits = GroupTraits<Block>;
  using Kind = typename Traits::Kind;
  using Rows = RowGroup;
  static constexpr int kBlockBytes = sizeof(Block), kSubBlocks = Traits::kSubBlocks;

  // The 16 bits at `offset` of each row.
  [[gnu::always_inline]] static Vu load_half_words(const RowGroup& rows, int64_t offset) {
    // The header is followed by codes: four bytes are there.
    return load_words(rows, offset) & 0xffff;
  }

  [[gnu::noinline]] static void decode(const RowGroup& rows, int64_t offset, CodeBlock<Kind>* out) {
    constexpr int kHalfBytes = Traits::kCodesOffset % 4;
    const GroupHeads heads = group_heads<Block>(
        [&](auto i) __attribute__((always_inline)) {
          return load_words(rows, offset + kHalfBytes + 4 * i.value);
        },
        [&]() __attribute__((always_inline)) { return load_half_words(rows, offset); });
    offset += Traits::kCodesOffset;
    for (int s = 0; s < kSubBlocks; ++s, offset += 16) {
      Vu words[4];
      transpose16(rows, offset, words);
      unroll<0, 4>(BRAID_UNROLLED(i) {
        out[s].codes[i.value] = group_codes<Block>(words[i.value] & 0x0f0f0f0f, heads);
        out[s].codes[i.value + 4] = group_codes<Block>((words[i.value] >> 4) & 0x0f0f0f0f, heads);
      });
      out[s].scale[0] = heads.scale;
      if constexpr (Kind::kMin) out[s].min[0] = group_min<Block>(heads);
    }
  }
};

constexpr LinearKernels make_table() {
  LinearKernels table{};
  for_group_formats([&](auto* block, FormatId id) {
    using Decoder = GroupDecoder<std::remove_pointer_t<decltype(block)>>;
    table.f32[static_cast<int>(id)] = float_kernel<Decoder>;
    table.int8[static_cast<int>(id)] = int8_kernel<Decoder>;
  });
  return table;
}

}  // namespace

const LinearKernels kGroupKernels = make_table();

}  // namespace braid::BRAID_ISA

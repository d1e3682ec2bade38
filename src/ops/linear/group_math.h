#pragma once

// Scales of the w4 formats (BlockW4 and BlockW4Asym in quant/schemes/block_layouts.h).

#include <type_traits>

#include "ops/linear/block_math.h"
#include "ops/linear/int8_tile.h"
#include "quant/schemes/block_layouts.h"

namespace braid::BRAID_ISA {

template <typename Block>
struct GroupTraits {
  static constexpr bool kAsymmetric = Block::kAsymmetric;
  static constexpr bool kF32Scale = sizeof(typename Block::Scale) == 4;
  // A float32 scale times a code less its zero is rounded once: the zero is taken off the code
  // first. Products with bfloat16 scales are exact, so that a min does as well.
  static constexpr bool kTakesOffZero = kAsymmetric && kF32Scale;
  using Kind = std::conditional_t<kTakesOffZero, SignedKind,
                                  std::conditional_t<kAsymmetric, CodeKind<false, 15, 1, true, 0>,
                                                     CodeKind<false, 15, 1, false, 3>>>;
  static constexpr int kSubBlocks = Block::kGroup / 32;
  static constexpr int kCodesOffset = sizeof(Block) - Block::kGroup / 2;
};

// The number whose upper half is the upper half of each word.
BRAID_INLINE Vf upper_bfloat16(Vu words) { return (Vf)(words & 0xffff0000); }
BRAID_INLINE Vf lower_bfloat16(Vu words) { return (Vf)(words << 16); }

// Scale and zero of a group of each of kLanes rows. `word(Index<i>)` gives 32-bit word i of the
// group's header, `half()` the 16 bits before them, if the header is no multiple of 32 bits.
struct GroupHeads {
  Vf scale;
  Vu zero;  // 0 to 16, in every byte; asymmetric formats
};
template <typename Block, typename Word, typename HalfWord>
BRAID_INLINE GroupHeads group_heads(const Word& word, const HalfWord& half) {
  using Traits = GroupTraits<Block>;
  GroupHeads heads{};
  if constexpr (Traits::kF32Scale) {
    heads.scale = (Vf)word(Index<0>{});
    if constexpr (Traits::kAsymmetric) heads.zero = half();
  } else if constexpr (Traits::kAsymmetric) {
    heads.scale = upper_bfloat16(word(Index<0>{}));
    heads.zero = word(Index<0>{});
  } else {
    heads.scale = lower_bfloat16(half());
  }
  if constexpr (Traits::kAsymmetric) heads.zero = repeat_byte(heads.zero, 0);
  return heads;
}

template <typename Block>
BRAID_INLINE Vf group_min(const GroupHeads& heads) {
  return -(heads.scale * to_vf((Vi)(heads.zero & 0xff)));
}

// 4 codes of a row as the kind has them.
template <typename Block>
BRAID_INLINE Vu group_codes(Vu codes, const GroupHeads& heads) {
  if constexpr (GroupTraits<Block>::kTakesOffZero) {
    return (Vu)((Vb)codes - (Vb)heads.zero) ^ splat_u32(kSignedBias);
  } else {
    return codes;
  }
}

// Calls add(a null pointer to the block type, its format) for every format.
template <typename Add>
constexpr void for_group_formats(const Add& add) {
  add(static_cast<BlockW4<32, BFloat16Bytes>*>(nullptr), FormatId::kW4G32);
  add(static_cast<BlockW4<64, BFloat16Bytes>*>(nullptr), FormatId::kW4G64);
  add(static_cast<BlockW4<128, BFloat16Bytes>*>(nullptr), FormatId::kW4G128);
  add(static_cast<BlockW4Asym<32, BFloat16Bytes>*>(nullptr), FormatId::kW4G32Asym);
  add(static_cast<BlockW4Asym<64, BFloat16Bytes>*>(nullptr), FormatId::kW4G64Asym);
  add(static_cast<BlockW4Asym<128, BFloat16Bytes>*>(nullptr), FormatId::kW4G128Asym);
  add(static_cast<BlockW4<32, Float32Bytes>*>(nullptr), FormatId::kW4G32F32);
  add(static_cast<BlockW4<64, Float32Bytes>*>(nullptr), FormatId::kW4G64F32);
  add(static_cast<BlockW4<128, Float32Bytes>*>(nullptr), FormatId::kW4G128F32);
  add(static_cast<BlockW4Asym<32, Float32Bytes>*>(nullptr), FormatId::kW4G32AsymF32);
  add(static_cast<BlockW4Asym<64, Float32Bytes>*>(nullptr), FormatId::kW4G64AsymF32);
  add(static_cast<BlockW4Asym<128, Float32Bytes>*>(nullptr), FormatId::kW4G128AsymF32);
}

}  // namespace braid::BRAID_ISA

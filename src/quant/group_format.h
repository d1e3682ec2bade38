#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "quant/quant_format.h"

namespace braid {

// The w4 formats: groups of 4-bit codes with a scale, w = scale · (code − zero). Symmetric ones
// have zero = 8 throughout. The layout of a group is in quant/schemes/block_layouts.h.
struct GroupFormat {
  int group = 128;          // values that share a scale: 32, 64 or 128
  bool asymmetric = false;  // each group has a zero of its own, 0 to 16
  bool f32_scales = false;  // otherwise bfloat16
};

// nullptr: there are no groups of that size.
const QuantFormat* find_group_format(const GroupFormat& format);
// What a format is as one of these; none for other formats.
std::optional<GroupFormat> as_group_format(const QuantFormat& format);

// One group; `codes`: as many as the group has values, 0 to 15. `zero` counts in asymmetric formats
// and must be 8 in the others. A bfloat16 scale is rounded to nearest even.
struct GroupHead {
  float scale = 0;
  int zero = 8;
};
void write_group(const QuantFormat& format, GroupHead head, const uint8_t* codes, std::byte* block);
GroupHead read_group(const QuantFormat& format, const std::byte* block, uint8_t* codes);

}  // namespace braid

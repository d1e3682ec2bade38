#include "quant/group_format.h"

#include <cstring>

#include "base/check.h"
#include "quant/schemes/group_blocks.h"

namespace braid {
namespace {

constexpr int kFirst = static_cast<int>(FormatId::kW4G32);
constexpr int kGroups[] = {32, 64, 128};
constexpr int kNumGroups = 3;
constexpr int kNumGroupFormats = 4 * kNumGroups;
static_assert(static_cast<int>(FormatId::kW4G128AsymF32) == kFirst + kNumGroupFormats - 1);

// Calls body with a null pointer to the format's block type.
template <int group, typename Body>
auto with_group(const GroupFormat& format, const Body& body) {
  if (format.asymmetric) {
    if (format.f32_scales) return body(static_cast<BlockW4Asym<group, Float32Bytes>*>(nullptr));
    return body(static_cast<BlockW4Asym<group, BFloat16Bytes>*>(nullptr));
  }
  if (format.f32_scales) return body(static_cast<BlockW4<group, Float32Bytes>*>(nullptr));
  return body(static_cast<BlockW4<group, BFloat16Bytes>*>(nullptr));
}
template <typename Body>
auto with_block(const QuantFormat& format, const Body& body) {
  const auto group_format = as_group_format(format);
  BRAID_CHECK(group_format && !format.panels(), "{}", format.name);
  switch (group_format->group) {
    case 32:
      return with_group<32>(*group_format, body);
    case 64:
      return with_group<64>(*group_format, body);
    default:
      return with_group<128>(*group_format, body);
  }
}

}  // namespace

const QuantFormat* find_group_format(const GroupFormat& format) {
  for (int i = 0; i < kNumGroups; ++i) {
    if (kGroups[i] != format.group) continue;
    const int variant = (format.asymmetric ? 1 : 0) + (format.f32_scales ? 2 : 0);
    return &quant_format(static_cast<FormatId>(kFirst + kNumGroups * variant + i));
  }
  return nullptr;
}

std::optional<GroupFormat> as_group_format(const QuantFormat& format) {
  const int index = static_cast<int>(format.id) - kFirst;
  if (index < 0 || index >= kNumGroupFormats) return std::nullopt;
  const int variant = index / kNumGroups;
  return GroupFormat{
      .group = format.block_elements, .asymmetric = variant % 2 == 1, .f32_scales = variant >= 2};
}

void write_group(const QuantFormat& format, GroupHead head, const uint8_t* codes,
                 std::byte* block) {
  with_block(format, [&](auto* type) {
    using Block = std::remove_pointer_t<decltype(type)>;
    Block packed;
    pack_group(packed, head, codes);
    std::memcpy(block, &packed, sizeof(packed));
  });
}

GroupHead read_group(const QuantFormat& format, const std::byte* block, uint8_t* codes) {
  return with_block(format, [&](auto* type) {
    using Block = std::remove_pointer_t<decltype(type)>;
    Block packed;
    std::memcpy(&packed, block, sizeof(packed));
    for (int i = 0; i < Block::kGroup; ++i) codes[i] = static_cast<uint8_t>(code_of(packed, i));
    return head_of(packed);
  });
}

}  // namespace braid

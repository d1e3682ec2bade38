#pragma once

// The sizes of quant/device_tiles.h by format, for host and device code.

#include <type_traits>

#include "quant/device_tiles.h"

namespace braid {

enum class TileScale { kFloat16, kBFloat16, kFloat32 };

// group: columns that share a scale; 0: all of a row.
template <int bits, int group, TileScale scale, bool zeros>
struct TileLayoutOf {
  static constexpr int kBits = bits, kGroup = group;
  static constexpr TileScale kScale = scale;
  static constexpr bool kZeros = zeros;
  static constexpr int kUnitCols = bits == 8 ? 32 : group > 64 ? group : 64;
  static constexpr int kGroups =
      group == 0 ? 0 : kUnitCols / (group == 0 ? 1 : group);  // of a unit
  static constexpr int kScaleBytes = scale == TileScale::kFloat32 ? 4 : 2;
  static constexpr int kCodeBytes = kTileRows * kUnitCols * bits / 8;
  static constexpr int kGroupBytes = kTileRows * (kScaleBytes + (zeros ? 2 : 0));
  static constexpr int kUnitBytes = kCodeBytes + kGroups * kGroupBytes;
};

// Of what a warp takes of a panel at a time: about 2 KiB.
template <typename Layout>
constexpr int tile_piece_columns() {
  return Layout::kBits == 4 ? 128 : 64;
}

template <FormatId>
struct TileLayout;
#define BRAID_TILE_LAYOUT(id, bits, group, scale, zeros) \
  template <>                                            \
  struct TileLayout<FormatId::id> : TileLayoutOf<bits, group, TileScale::scale, zeros> {}
BRAID_TILE_LAYOUT(kQ4_0, 4, 32, kFloat16, false);
BRAID_TILE_LAYOUT(kQ8_0, 8, 32, kFloat16, false);
BRAID_TILE_LAYOUT(kW4G32, 4, 32, kBFloat16, false);
BRAID_TILE_LAYOUT(kW4G64, 4, 64, kBFloat16, false);
BRAID_TILE_LAYOUT(kW4G128, 4, 128, kBFloat16, false);
BRAID_TILE_LAYOUT(kW4G32Asym, 4, 32, kBFloat16, true);
BRAID_TILE_LAYOUT(kW4G64Asym, 4, 64, kBFloat16, true);
BRAID_TILE_LAYOUT(kW4G128Asym, 4, 128, kBFloat16, true);
BRAID_TILE_LAYOUT(kW4G32F32, 4, 32, kFloat32, false);
BRAID_TILE_LAYOUT(kW4G64F32, 4, 64, kFloat32, false);
BRAID_TILE_LAYOUT(kW4G128F32, 4, 128, kFloat32, false);
BRAID_TILE_LAYOUT(kW4G32AsymF32, 4, 32, kFloat32, true);
BRAID_TILE_LAYOUT(kW4G64AsymF32, 4, 64, kFloat32, true);
BRAID_TILE_LAYOUT(kW4G128AsymF32, 4, 128, kFloat32, true);
BRAID_TILE_LAYOUT(kW8C, 8, 0, kFloat32, false);
#undef BRAID_TILE_LAYOUT

// Calls body(std::integral_constant<FormatId, …>) for a format that has tiles; false for others.
template <typename Body>
bool with_tile_format(FormatId id, const Body& body) {
  switch (id) {
#define BRAID_TILE_CASE(name)                                 \
  case FormatId::name:                                        \
    body(std::integral_constant<FormatId, FormatId::name>{}); \
    return true;
    BRAID_TILE_CASE(kQ4_0)
    BRAID_TILE_CASE(kQ8_0)
    BRAID_TILE_CASE(kW4G32)
    BRAID_TILE_CASE(kW4G64)
    BRAID_TILE_CASE(kW4G128)
    BRAID_TILE_CASE(kW4G32Asym)
    BRAID_TILE_CASE(kW4G64Asym)
    BRAID_TILE_CASE(kW4G128Asym)
    BRAID_TILE_CASE(kW4G32F32)
    BRAID_TILE_CASE(kW4G64F32)
    BRAID_TILE_CASE(kW4G128F32)
    BRAID_TILE_CASE(kW4G32AsymF32)
    BRAID_TILE_CASE(kW4G64AsymF32)
    BRAID_TILE_CASE(kW4G128AsymF32)
    BRAID_TILE_CASE(kW8C)
#undef BRAID_TILE_CASE
    default:
      return false;
  }
}

}  // namespace braid

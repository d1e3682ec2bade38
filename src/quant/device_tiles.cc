#include "quant/device_tiles.h"

#include <array>
#include <string>

#include "quant/tile_layout.h"
#include "quant/tiled_weight.h"

namespace braid {
namespace {

struct TileFormats {
  std::array<std::string, kNumFormats> names;
  std::array<QuantFormat, kNumFormats> formats;

  TileFormats() {
    for (int id = 0; id < kNumFormats; ++id) {
      formats[id] = quant_format(static_cast<FormatId>(id));
      names[id] = std::string(formats[id].name) + " tiles";
      formats[id].name = names[id];
      formats[id].panel_rows = kTileRows;
    }
  }
};
const TileFormats& tile_formats() {
  static const TileFormats formats;
  return formats;
}

}  // namespace

const QuantFormat* tile_format(const QuantFormat& format, int64_t cols) {
  if (format.panels()) return nullptr;
  bool fits = false;
  with_tile_format(format.id, [&](auto id) { fits = cols % TileLayout<id()>::kUnitCols == 0; });
  return fits ? &tile_formats().formats[static_cast<int>(format.id)] : nullptr;
}

Weight in_tile_layout(const Weight& rows) {
  if (rows.shape.rank() < 2 || rows.rows() == 0) return rows;
  const QuantFormat* format = tile_format(*rows.format, rows.cols());
  Weight tiles = rows;
  if (format == nullptr) return tiles;
  tiles.format = format;
  tiles.data = nullptr;
  tiles.owner = nullptr;
  return tiles;
}

bool in_tiles(const QuantFormat& format) {
  return &format == &tile_formats().formats[static_cast<int>(format.id)];
}

}  // namespace braid

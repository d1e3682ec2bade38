#include "quant/device_tiles.h"

#include <array>
#include <string>

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

bool has_tiles(FormatId id) { return id == FormatId::kQ4_0 || id == FormatId::kQ8_0; }

}  // namespace

const QuantFormat* tile_format(const QuantFormat& format, int64_t cols) {
  if (format.panels() || !has_tiles(format.id) || cols % 64 != 0) return nullptr;
  return &tile_formats().formats[static_cast<int>(format.id)];
}

bool in_tiles(const QuantFormat& format) {
  return &format == &tile_formats().formats[static_cast<int>(format.id)];
}

}  // namespace braid

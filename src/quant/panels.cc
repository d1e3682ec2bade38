#include "quant/panels.h"

#include <array>
#include <cstring>
#include <string>
#include <vector>

namespace braid {
namespace {

struct PanelFormats {
  std::array<std::string, kNumFormats> names;
  std::array<QuantFormat, kNumFormats> formats;

  PanelFormats() {
    for (int id = 0; id < kNumFormats; ++id) {
      formats[id] = quant_format(static_cast<FormatId>(id));
      names[id] = std::string(formats[id].name) + "x" + std::to_string(kPanelRows);
      formats[id].name = names[id];
      formats[id].panel_rows = kPanelRows;
    }
  }
};
const PanelFormats& panel_formats() {
  static const PanelFormats formats;
  return formats;
}

// Where the parts of a block lie, in a row and in a panel.
struct Layout {
  int half_offset = 0;     // in a row's block
  int64_t half_bytes = 0;  // 2, or 0 without a float16 of its own
  int words_offset = 0;    // in a row's block
  int64_t num_words = 0;

  explicit Layout(const QuantFormat& format) {
    half_bytes = format.block_bytes % 4;
    num_words = format.block_bytes / 4;
    // Blocks of 256 end with it, others begin with it.
    if (format.block_elements < 256) {
      words_offset = static_cast<int>(half_bytes);
    } else {
      half_offset = static_cast<int>(4 * num_words);
    }
  }
};

// Both directions of the move between one row's block and its places in a panel's block; `lane`
// counts the panel's rows.
template <typename Move>
void for_parts(const Layout& layout, int64_t lane, const Move& move) {
  if (layout.half_bytes > 0) move(layout.half_offset, 2 * lane, 2);
  const int64_t begin = layout.half_bytes * kPanelRows + 4 * lane;
  for (int64_t word = 0; word < layout.num_words; ++word) {
    move(layout.words_offset + 4 * word, begin + 4 * kPanelRows * word, 4);
  }
}

}  // namespace

const QuantFormat* panel_format(const QuantFormat& format) {
  return format.plain() ? nullptr : &panel_formats().formats[static_cast<int>(format.id)];
}

const QuantFormat* find_panel_format(std::string_view name) {
  for (const QuantFormat& format : panel_formats().formats) {
    if (format.name == name && !format.plain()) return &format;
  }
  return nullptr;
}

void pack_panels(const QuantFormat& format, const std::byte* rows, int64_t num_rows, int64_t cols,
                 std::byte* panels) {
  BRAID_CHECK(!format.plain() && !format.panels() && cols % format.block_elements == 0, "{}",
              format.name);
  const Layout layout(format);
  const int64_t blocks = cols / format.block_elements;
  const int64_t row_bytes = format.row_bytes(cols);
  const int64_t panel_bytes = kPanelRows * row_bytes;
  const int64_t block_bytes = format.block_bytes, header_bytes = format.row_header_bytes;
  for (int64_t first = 0; first < num_rows; first += kPanelRows, panels += panel_bytes) {
    if (num_rows - first < kPanelRows) std::memset(panels, 0, static_cast<size_t>(panel_bytes));
    for (int64_t lane = 0; lane < kPanelRows && first + lane < num_rows; ++lane) {
      for (int64_t i = 0; i < header_bytes; i += 4) {
        std::memcpy(panels + kPanelRows * i + 4 * lane, rows + (first + lane) * row_bytes + i, 4);
      }
    }
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t offset = header_bytes + block * block_bytes;  // in a row
      std::byte* const to = panels + offset * kPanelRows;
      for (int64_t lane = 0; lane < kPanelRows && first + lane < num_rows; ++lane) {
        const std::byte* const from = rows + (first + lane) * row_bytes + offset;
        for_parts(layout, lane, [&](int64_t in_row, int64_t in_panel, size_t bytes) {
          std::memcpy(to + in_panel, from + in_row, bytes);
        });
      }
    }
  }
}

void copy_row(const Weight& weight, int64_t row, std::byte* blocks) {
  const QuantFormat& format = *weight.format;
  const int64_t row_bytes = weight.row_bytes();
  if (!format.panels()) {
    std::memcpy(blocks, weight.data + row * row_bytes, static_cast<size_t>(row_bytes));
    return;
  }
  const Layout layout(format);
  const int64_t matrix = row / weight.rows(), in_matrix = row % weight.rows();
  const std::byte* from = weight.data + matrix * weight.matrix_bytes() +
                          in_matrix / kPanelRows * kPanelRows * row_bytes;
  const int64_t lane = in_matrix % kPanelRows, header_bytes = format.row_header_bytes;
  for (int64_t i = 0; i < header_bytes; i += 4) {
    std::memcpy(blocks + i, from + kPanelRows * i + 4 * lane, 4);
  }
  blocks += header_bytes;
  from += header_bytes * kPanelRows;
  for (int64_t done = header_bytes; done < row_bytes; done += format.block_bytes) {
    for_parts(layout, lane, [&](int64_t in_row, int64_t in_panel, size_t bytes) {
      std::memcpy(blocks + in_row, from + in_panel, bytes);
    });
    blocks += format.block_bytes;
    from += format.block_bytes * kPanelRows;
  }
}

void expand_row(const Weight& weight, int64_t row, float* out) {
  if (!weight.format->panels()) {
    dequantize(*weight.format, weight.data + row * weight.row_bytes(), weight.cols(), out);
    return;
  }
  std::vector<std::byte> blocks(static_cast<size_t>(weight.row_bytes()));
  copy_row(weight, row, blocks.data());
  dequantize(quant_format(weight.format->id), blocks.data(), weight.cols(), out);
}

}  // namespace braid

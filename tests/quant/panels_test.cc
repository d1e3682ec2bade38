#include "quant/panels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "support/fresh_seed.h"

namespace braid {
namespace {

std::vector<FormatId> block_formats() {
  std::vector<FormatId> ids;
  for (int id = 0; id < kNumFormats; ++id) {
    if (!quant_format(static_cast<FormatId>(id)).plain()) ids.push_back(static_cast<FormatId>(id));
  }
  return ids;
}

TEST(PanelsTest, FormatsKeepTheirBytes) {
  for (const FormatId id : block_formats()) {
    const QuantFormat& format = quant_format(id);
    const QuantFormat* panels = panel_format(format);
    ASSERT_NE(panels, nullptr) << format.name;
    EXPECT_TRUE(panels->panels() && !format.panels());
    EXPECT_EQ(panels->id, id);
    EXPECT_EQ(panels->name, std::string(format.name) + "x16");
    EXPECT_EQ(panels->row_bytes(256), format.row_bytes(256));
    EXPECT_EQ(find_panel_format(panels->name), panels);
    EXPECT_EQ(find_quant_format(panels->name), nullptr);
  }
  EXPECT_EQ(panel_format(quant_format(FormatId::kBF16)), nullptr);
  EXPECT_EQ(find_panel_format("bf16x16"), nullptr);
  EXPECT_EQ(find_panel_format("q4_0"), nullptr);
}

TEST(PanelsTest, RowsComeBack) {
  testing::FreshRandom random;
  std::mt19937_64& engine = random.engine();
  for (const FormatId id : block_formats()) {
    const QuantFormat& format = quant_format(id);
    SCOPED_TRACE(format.name);
    for (const int64_t rows : {1, 15, 16, 17, 33}) {
      for (const int64_t blocks : {1, 2, 5}) {
        for (const int64_t matrices : {1, 3}) {
          const int64_t cols = blocks * format.block_elements;
          Weight w{.format = &format, .shape = {matrices, rows, cols}};
          std::vector<std::byte> bytes(static_cast<size_t>(w.size_bytes()));
          for (std::byte& byte : bytes) byte = static_cast<std::byte>(engine() & 0xff);
          w.data = bytes.data();
          Weight panels = w;
          panels.format = panel_format(format);
          const int64_t filled = (rows + 15) / 16 * 16;
          ASSERT_EQ(panels.size_bytes(), matrices * filled * w.row_bytes());
          // Whatever is there before, what is filled in is zero.
          std::vector<std::byte> packed(static_cast<size_t>(panels.size_bytes()), std::byte{0xaa});
          for (int64_t m = 0; m < matrices; ++m) {
            pack_panels(format, w.data + m * w.matrix_bytes(), rows, cols,
                        packed.data() + m * panels.matrix_bytes());
          }
          panels.data = packed.data();
          std::vector<std::byte> row(static_cast<size_t>(w.row_bytes()));
          std::vector<float> expected(static_cast<size_t>(cols)), actual(expected);
          for (int64_t r = 0; r < matrices * rows; ++r) {
            copy_row(panels, r, row.data());
            ASSERT_TRUE(std::equal(row.begin(), row.end(), w.data + r * w.row_bytes())) << r;
            expand_row(panels, r, actual.data());
            dequantize(format, w.data + r * w.row_bytes(), cols, expected.data());
            ASSERT_EQ(0, std::memcmp(expected.data(), actual.data(), 4 * expected.size())) << r;
            expand_row(w, r, actual.data());
            ASSERT_EQ(0, std::memcmp(expected.data(), actual.data(), 4 * expected.size())) << r;
          }
          int64_t not_zero = 0, not_zero_before = 0;
          for (const std::byte byte : packed) not_zero += byte != std::byte{0};
          for (const std::byte byte : bytes) not_zero_before += byte != std::byte{0};
          ASSERT_EQ(not_zero, not_zero_before);
        }
      }
    }
  }
}

// The layout that files rely on.
TEST(PanelsTest, WordsOfSixteenRowsLieTogether) {
  const QuantFormat& format = quant_format(FormatId::kQ4_0);
  std::vector<std::byte> rows(18 * 16), panel(18 * 16);
  for (int r = 0; r < 16; ++r) {
    for (int i = 0; i < 18; ++i) rows[18 * r + i] = static_cast<std::byte>(16 * i + r);
  }
  pack_panels(format, rows.data(), 16, 32, panel.data());
  for (int r = 0; r < 16; ++r) {
    for (int i = 0; i < 18; ++i) {
      const int place = i < 2 ? 2 * r + i : 32 + (i - 2) / 4 * 64 + 4 * r + (i - 2) % 4;
      ASSERT_EQ(panel[place], rows[18 * r + i]) << "row " << r << " byte " << i;
    }
  }
}

// Headers of rows come before the blocks.
TEST(PanelsTest, HeadersOfSixteenRowsLieTogether) {
  const QuantFormat& format = quant_format(FormatId::kW8C);
  constexpr int kRowBytes = 8 + 64;
  std::vector<std::byte> rows(kRowBytes * 16), panel(kRowBytes * 16);
  for (int r = 0; r < 16; ++r) {
    for (int i = 0; i < kRowBytes; ++i) {
      rows[kRowBytes * r + i] = static_cast<std::byte>(41 * i + r);
    }
  }
  pack_panels(format, rows.data(), 16, 64, panel.data());
  for (int r = 0; r < 16; ++r) {
    for (int i = 0; i < kRowBytes; ++i) {
      ASSERT_EQ(panel[i / 4 * 64 + 4 * r + i % 4], rows[kRowBytes * r + i]) << r << " " << i;
    }
  }
}

TEST(PanelsDeathTest, RowsOfPanelsHaveNoAddress) {
  Weight w{.format = panel_format(quant_format(FormatId::kQ8_0)), .shape = {40, 32}};
  EXPECT_EQ(w.row(16), w.data + 16 * 34);
  EXPECT_DEATH(w.row(1), "row 1 of q8_0x16");
  EXPECT_DEATH(w.slice_rows(8, 8), "row 8 of q8_0x16");
}

}  // namespace
}  // namespace braid

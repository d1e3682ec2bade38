#include "quantize/rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "quant/group_format.h"
#include "support/fresh_seed.h"

namespace braid {
namespace {

constexpr FormatId kFormats[] = {
    FormatId::kW4G32,        FormatId::kW4G64,      FormatId::kW4G128,   FormatId::kW4G32Asym,
    FormatId::kW4G64Asym,    FormatId::kW4G128Asym, FormatId::kW4G32F32, FormatId::kW4G128F32,
    FormatId::kW4G64AsymF32, FormatId::kW8C,        FormatId::kQ8_0,     FormatId::kQ4_0,
    FormatId::kQ4_1};

std::vector<float> random_row(int64_t cols, testing::FreshRandom& random) {
  std::normal_distribution<float> normal(static_cast<float>(random.integer(-1, 1)), 1);
  std::vector<float> row(static_cast<size_t>(cols));
  const float size = std::ldexp(1.0f, static_cast<int>(random.integer(-8, 3)));
  for (float& x : row) x = random.coin(0.05) ? 0 : size * normal(random.engine());
  return row;
}

// Formats whose plain rounding is that of the reference quantiser, bit for bit.
TEST(Rounding, EqualsTheReferenceQuantisers) {
  testing::FreshRandom random;
  for (const FormatId id : kFormats) {
    const QuantFormat& format = quant_format(id);
    if (id == FormatId::kQ8_0 || id == FormatId::kQ4_0 || id == FormatId::kQ4_1) continue;
    for (int round = 0; round < 20; ++round) {
      const int64_t cols = 128 * random.integer(1, 4);
      const std::vector<float> row = random_row(cols, random);
      const RoundingGrid grid = rounding_grid(format, cols);
      RoundedRows rounded(grid, 1, cols);
      round_row(grid, row.data(), nullptr, false, 0, rounded);
      std::vector<std::byte> ours(static_cast<size_t>(format.row_bytes(cols)));
      std::vector<std::byte> theirs = ours;
      pack_row(grid, rounded, 0, ours.data());
      quantize(format, row.data(), cols, theirs.data());
      ASSERT_EQ(ours, theirs) << format.name;
    }
  }
}

TEST(Rounding, PackedRowsHoldTheValuesAndUnpack) {
  testing::FreshRandom random;
  for (const FormatId id : kFormats) {
    const QuantFormat& format = quant_format(id);
    for (const bool search : {false, true}) {
      const int64_t cols = 128 * random.integer(1, 4);
      const std::vector<float> row = random_row(cols, random);
      const RoundingGrid grid = rounding_grid(format, cols);
      RoundedRows rounded(grid, 1, cols), again(grid, 1, cols);
      round_row(grid, row.data(), nullptr, search, 0, rounded);
      std::vector<std::byte> bytes(static_cast<size_t>(format.row_bytes(cols)));
      pack_row(grid, rounded, 0, bytes.data());
      std::vector<float> values(static_cast<size_t>(cols));
      dequantize(format, bytes.data(), cols, values.data());
      unpack_row(grid, bytes.data(), 0, again);
      ASSERT_EQ(again.codes, rounded.codes) << format.name;
      for (int64_t c = 0; c < cols; ++c) {
        const GroupScale& scale = rounded.scales[c / grid.group];
        ASSERT_EQ(values[c], value_of(scale, rounded.codes[c])) << format.name << " " << c;
        ASSERT_EQ(values[c], value_of(again.scales[c / grid.group], again.codes[c]));
        // No code lies nearer.
        const float off = std::fabs(values[c] - row[c]);
        for (const int other : {rounded.codes[c] - 1, rounded.codes[c] + 1}) {
          if (other < grid.low || other > grid.high) continue;
          const float slack = 4e-7f * (std::fabs(row[c]) + std::fabs(scale.scale) * 16 * 16);
          ASSERT_LE(off, std::fabs(value_of(scale, other) - row[c]) + slack) << format.name;
        }
      }
    }
  }
}

TEST(Rounding, OneScaleForTheWholeRow) {
  testing::FreshRandom random;
  const int64_t cols = 384;
  const std::vector<float> row = random_row(cols, random);
  for (const FormatId id : {FormatId::kW4G128, FormatId::kW4G64Asym}) {
    const QuantFormat& format = quant_format(id);
    const RoundingGrid grid = rounding_grid(format, cols, /*per_row=*/true);
    RoundedRows rounded(grid, 1, cols);
    round_row(grid, row.data(), nullptr, false, 0, rounded);
    ASSERT_EQ(rounded.scales.size(), 1u);
    std::vector<std::byte> bytes(static_cast<size_t>(format.row_bytes(cols)));
    pack_row(grid, rounded, 0, bytes.data());
    std::vector<float> values(static_cast<size_t>(cols));
    dequantize(format, bytes.data(), cols, values.data());
    for (int64_t c = 0; c < cols; ++c) {
      ASSERT_EQ(values[c], value_of(rounded.scales[0], rounded.codes[c]));
    }
  }
}

TEST(Rounding, SearchedScalesLoseNoMore) {
  testing::FreshRandom random;
  for (const FormatId id : kFormats) {
    const int64_t cols = 128;
    const RoundingGrid grid = rounding_grid(quant_format(id), cols);
    double plain_sum = 0, searched_sum = 0;
    for (int round = 0; round < 50; ++round) {
      const std::vector<float> row = random_row(grid.group, random);
      std::vector<float> importance(row.size());
      for (float& x : importance) x = static_cast<float>(random.integer(0, 8));
      const auto error = [&](bool search) {
        const GroupScale scale = fit_group(grid, row.data(), importance.data(), grid.group, search);
        double sum = 0;
        for (size_t i = 0; i < row.size(); ++i) {
          const double e = row[i] - value_of(scale, code_of(grid, scale, row[i]));
          sum += importance[i] * e * e;
        }
        return sum;
      };
      const double plain = error(false), searched = error(true);
      // The search adds its errors in float32.
      EXPECT_LE(searched, plain * (1 + 1e-4)) << quant_format(id).name;
      plain_sum += plain;
      searched_sum += searched;
    }
    EXPECT_LT(searched_sum, plain_sum) << quant_format(id).name;
  }
}

TEST(Rounding, GroupsOfZerosStayZero) {
  for (const FormatId id : kFormats) {
    const int64_t cols = 128;
    const QuantFormat& format = quant_format(id);
    const RoundingGrid grid = rounding_grid(format, cols);
    const std::vector<float> row(static_cast<size_t>(cols));
    RoundedRows rounded(grid, 1, cols);
    round_row(grid, row.data(), nullptr, true, 0, rounded);
    std::vector<std::byte> bytes(static_cast<size_t>(format.row_bytes(cols)));
    pack_row(grid, rounded, 0, bytes.data());
    std::vector<float> values(static_cast<size_t>(cols), 1.0f);
    dequantize(format, bytes.data(), cols, values.data());
    EXPECT_EQ(values, row) << format.name;
  }
}

TEST(Rounding, NamesFormatsWithoutAGrid) {
  EXPECT_THROW(rounding_grid(quant_format(FormatId::kQ4K), 256), Error);
  EXPECT_THROW(rounding_grid(quant_format(FormatId::kBF16), 256), Error);
}

}  // namespace
}  // namespace braid

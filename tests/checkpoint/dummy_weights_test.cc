#include "checkpoint/dummy_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "quant/panels.h"
#include "support/fresh_seed.h"

namespace braid {
namespace {

std::vector<float> values_of(const Weight& weight) {
  std::vector<float> values(static_cast<size_t>(weight.shape.num_elements()));
  for (int64_t row = 0; row < weight.shape.num_elements() / weight.cols(); ++row) {
    expand_row(weight, row, values.data() + row * weight.cols());
  }
  return values;
}

TEST(DummyWeights, HaveTheirFormatAndSpread) {
  const uint64_t seed = testing::fresh_seed();
  SCOPED_TRACE(seed);
  for (int id = 0; id < kNumFormats; ++id) {
    const QuantFormat& format = quant_format(static_cast<FormatId>(id));
    SCOPED_TRACE(format.name);
    const int64_t rows = 256, cols = 768;
    const Weight weight = make_dummy_weight(seed, "w", {rows, cols}, format);
    EXPECT_EQ(weight.format, &format);
    double sum = 0, squares = 0;
    for (const float value : values_of(weight)) {
      ASSERT_TRUE(std::isfinite(value));
      sum += value;
      squares += double{value} * value;
    }
    const double count = static_cast<double>(rows * cols);
    const double deviation = 1 / std::sqrt(static_cast<double>(cols));
    // Rounding to a few levels changes the spread by far less than a quarter; a float16 scale that
    // vanished, or was never set, by more.
    EXPECT_NEAR(std::sqrt(squares / count), deviation, deviation / 4);
    EXPECT_NEAR(sum / count, 0, deviation / 4);
  }
}

TEST(DummyWeights, DependOnSeedAndNameOnly) {
  const QuantFormat& format = quant_format(FormatId::kQ4K);
  const auto make = [&](uint64_t seed, std::string_view name) {
    return values_of(make_dummy_weight(seed, name, {4, 256}, format));
  };
  EXPECT_EQ(make(1, "a"), make(1, "a"));
  EXPECT_NE(make(1, "a"), make(2, "a"));
  EXPECT_NE(make(1, "a"), make(1, "b"));
  // Neighbouring rows differ.
  const Weight weight = make_dummy_weight(1, "a", {2, 256}, format);
  EXPECT_NE(std::memcmp(weight.row(0), weight.row(1), static_cast<size_t>(weight.row_bytes())), 0);
}

// Large ones are filled by several threads, in pieces of their own random numbers.
TEST(DummyWeights, LargeOnesAreTheSameEachTimeAndDoNotRepeat) {
  const uint64_t seed = testing::fresh_seed();
  SCOPED_TRACE(seed);
  const Shape shape{9000, 1024};
  for (const FormatId id : {FormatId::kQ8_0, FormatId::kBF16, FormatId::kW8C}) {
    const Weight first = make_dummy_weight(seed, "w", shape, quant_format(id));
    const Weight second = make_dummy_weight(seed, "w", shape, quant_format(id));
    const auto bytes = static_cast<size_t>(first.size_bytes());
    ASSERT_EQ(std::memcmp(first.data, second.data, bytes), 0);
    // No row is left at zero, and one in a hundred or more is unlike all before it.
    std::set<std::string> rows;
    for (int64_t row = 0; row < first.rows(); ++row) {
      rows.emplace(reinterpret_cast<const char*>(first.row(row)),
                   static_cast<size_t>(first.row_bytes()));
    }
    EXPECT_EQ(rows.count(std::string(static_cast<size_t>(first.row_bytes()), '\0')), 0u);
    // A block of w8c is a whole row, and the pool they are drawn from holds few of those.
    const size_t enough = id == FormatId::kW8C ? 32 : static_cast<size_t>(first.rows()) / 100;
    EXPECT_GT(rows.size(), enough);
  }
}

TEST(DummyWeights, PanelsHoldTheValuesOfRows) {
  const uint64_t seed = testing::fresh_seed();
  SCOPED_TRACE(seed);
  for (const Shape& shape : {Shape{40, 256}, Shape{3, 17, 64}, Shape{9000, 1024}}) {
    for (const FormatId id : {FormatId::kQ4_0, FormatId::kQ6K}) {
      const QuantFormat& format = quant_format(id);
      const Weight rows = make_dummy_weight(seed, "w", shape, format);
      const Weight panels = make_dummy_weight(seed, "w", shape, *panel_format(format));
      SCOPED_TRACE(to_string(shape) + " " + std::string(rows.format->name));
      ASSERT_EQ(panels.format, panel_format(*rows.format));
      const auto row_bytes = static_cast<size_t>(rows.row_bytes());
      std::vector<std::byte> row(row_bytes);
      for (int64_t r = 0; r < shape.num_elements() / rows.cols(); ++r) {
        copy_row(panels, r, row.data());
        ASSERT_EQ(0, std::memcmp(row.data(), rows.data + r * rows.row_bytes(), row_bytes)) << r;
      }
    }
  }
  // Plain elements have no panels.
  EXPECT_EQ(make_dummy_weight(seed, "w", {16, 33}, *panel_format(quant_format(FormatId::kQ4_0)))
                .format->id,
            FormatId::kF16);
}

TEST(DummyWeights, RowsThatBlocksDoNotDivideFallBack) {
  const auto format_of = [](FormatId asked, int64_t cols) {
    return make_dummy_weight(1, "w", {3, cols}, quant_format(asked)).format->id;
  };
  EXPECT_EQ(format_of(FormatId::kQ4K, 704), FormatId::kQ5_0);
  EXPECT_EQ(format_of(FormatId::kQ5K, 704), FormatId::kQ5_1);
  EXPECT_EQ(format_of(FormatId::kQ6K, 704), FormatId::kQ8_0);
  EXPECT_EQ(format_of(FormatId::kQ2K, 704), FormatId::kQ4_0);
  EXPECT_EQ(format_of(FormatId::kQ6K, 33), FormatId::kF16);
  EXPECT_EQ(format_of(FormatId::kBF16, 33), FormatId::kBF16);
  EXPECT_EQ(format_of(FormatId::kW4G128, 704), FormatId::kW4G64);
  EXPECT_EQ(format_of(FormatId::kW4G128AsymF32, 96), FormatId::kW4G32AsymF32);
  EXPECT_EQ(format_of(FormatId::kW4G64, 33), FormatId::kBF16);
  EXPECT_EQ(format_of(FormatId::kW8C, 704), FormatId::kW8C);
  EXPECT_EQ(format_of(FormatId::kW8C, 33), FormatId::kBF16);
}

TEST(DummyWeights, VectorsAreNearOne) {
  const Tensor vector = make_dummy_f32(3, "norm", {1000});
  for (const float value : vector.view().span<float>()) ASSERT_NEAR(value, 1, 0.5);
  EXPECT_EQ(make_dummy_weight(3, "norm", {10}, quant_format(FormatId::kQ8_0)).format->id,
            FormatId::kF32);
}

}  // namespace
}  // namespace braid

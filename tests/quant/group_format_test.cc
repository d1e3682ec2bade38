#include "quant/group_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "quant/channel_format.h"
#include "support/fresh_seed.h"

namespace braid {
namespace {

std::vector<const QuantFormat*> group_formats() {
  std::vector<const QuantFormat*> formats;
  for (int id = 0; id < kNumFormats; ++id) {
    const QuantFormat& format = quant_format(static_cast<FormatId>(id));
    if (as_group_format(format)) formats.push_back(&format);
  }
  return formats;
}

TEST(GroupFormatTest, AllTwelveAreFound) {
  std::set<const QuantFormat*> found;
  for (const int group : {32, 64, 128}) {
    for (const bool asymmetric : {false, true}) {
      for (const bool f32_scales : {false, true}) {
        const QuantFormat* format = find_group_format({group, asymmetric, f32_scales});
        ASSERT_NE(format, nullptr);
        found.insert(format);
        const auto back = as_group_format(*format);
        ASSERT_TRUE(back);
        EXPECT_EQ(back->group, group);
        EXPECT_EQ(back->asymmetric, asymmetric);
        EXPECT_EQ(back->f32_scales, f32_scales);
        EXPECT_EQ(format->block_elements, group);
        EXPECT_EQ(format->block_bytes, group / 2 + (f32_scales ? 4 : 2) + (asymmetric ? 2 : 0));
        EXPECT_EQ(std::string(format->name), "w4g" + std::to_string(group) +
                                                 (asymmetric ? "_asym" : "") +
                                                 (f32_scales ? "_f32" : ""));
      }
    }
  }
  EXPECT_EQ(found.size(), 12u);
  EXPECT_EQ(group_formats().size(), 12u);
  EXPECT_EQ(find_group_format({.group = 256}), nullptr);
  EXPECT_FALSE(as_group_format(quant_format(FormatId::kQ4_0)));
  EXPECT_FALSE(as_group_format(quant_format(FormatId::kW8C)));
}

// The layout that files and devices rely on.
TEST(GroupFormatTest, NibblesOfThirtyTwoLieTogether) {
  for (const QuantFormat* format : group_formats()) {
    SCOPED_TRACE(format->name);
    const GroupFormat group = *as_group_format(*format);
    std::vector<uint8_t> codes(static_cast<size_t>(group.group));
    for (int i = 0; i < group.group; ++i) codes[i] = static_cast<uint8_t>((i * 7 + i / 16) % 16);
    std::vector<std::byte> block(static_cast<size_t>(format->block_bytes), std::byte{0xcc});
    write_group(*format, {.scale = -1.5f, .zero = group.asymmetric ? 3 : 8}, codes.data(),
                block.data());
    size_t at = 0;
    if (group.asymmetric) {
      EXPECT_EQ(block[0], std::byte{3});
      EXPECT_EQ(block[1], std::byte{0});
      at = 2;
    }
    // -1.5: 0xbfc00000 as float32, 0xbfc0 as bfloat16, little-endian.
    const std::vector<int> scale =
        group.f32_scales ? std::vector<int>{0, 0, 0xc0, 0xbf} : std::vector<int>{0xc0, 0xbf};
    for (const int byte : scale) EXPECT_EQ(std::to_integer<int>(block[at++]), byte);
    for (int part = 0; part < group.group / 32; ++part) {
      for (int j = 0; j < 16; ++j) {
        EXPECT_EQ(std::to_integer<int>(block[at++]),
                  codes[32 * part + j] + 16 * codes[32 * part + j + 16]);
      }
    }
    EXPECT_EQ(at, block.size());
  }
}

TEST(GroupFormatTest, GroupsComeBackAndExpandExactly) {
  testing::FreshRandom random;
  std::mt19937_64& engine = random.engine();
  for (const QuantFormat* format : group_formats()) {
    SCOPED_TRACE(format->name);
    const GroupFormat group = *as_group_format(*format);
    for (int round = 0; round < 100; ++round) {
      GroupHead head{.scale = std::normal_distribution<float>()(engine)};
      if (!group.f32_scales) head.scale = to_float(to_bfloat16(head.scale));
      if (group.asymmetric) head.zero = static_cast<int>(engine() % 17);
      std::vector<uint8_t> codes(static_cast<size_t>(group.group)), back(codes);
      for (uint8_t& code : codes) code = static_cast<uint8_t>(engine() % 16);
      std::vector<std::byte> block(static_cast<size_t>(format->block_bytes));
      write_group(*format, head, codes.data(), block.data());
      const GroupHead read = read_group(*format, block.data(), back.data());
      EXPECT_EQ(read.scale, head.scale);
      EXPECT_EQ(read.zero, head.zero);
      EXPECT_EQ(back, codes);
      std::vector<float> values(codes.size());
      dequantize(*format, block.data(), group.group, values.data());
      for (int i = 0; i < group.group; ++i) {
        ASSERT_EQ(values[i], head.scale * static_cast<float>(codes[i] - head.zero));
      }
    }
  }
}

TEST(GroupFormatDeathTest, ZerosOutsideTheFormat) {
  const std::vector<uint8_t> codes(32);
  std::vector<std::byte> block(32);
  const QuantFormat& symmetric = quant_format(FormatId::kW4G32);
  const QuantFormat& asymmetric = quant_format(FormatId::kW4G32Asym);
  EXPECT_DEATH(write_group(symmetric, {1, 7}, codes.data(), block.data()), "zero 7");
  EXPECT_DEATH(write_group(asymmetric, {1, 17}, codes.data(), block.data()), "zero 17");
}

// Every code is the nearest to its value on the block's own grid; ties go to the even code.
TEST(GroupFormatTest, RoundsToTheNearestCode) {
  testing::FreshRandom random;
  std::mt19937_64& engine = random.engine();
  for (const QuantFormat* format : group_formats()) {
    SCOPED_TRACE(format->name);
    const GroupFormat group = *as_group_format(*format);
    for (int round = 0; round < 100; ++round) {
      const float shift = round % 3 == 0 ? 2.0f : 0.0f;  // some groups far from 0
      std::vector<float> values(static_cast<size_t>(group.group));
      for (float& x : values) x = shift + std::normal_distribution<float>()(engine);
      std::vector<std::byte> block(static_cast<size_t>(format->block_bytes));
      quantize(*format, values.data(), group.group, block.data());
      std::vector<uint8_t> codes(values.size());
      const GroupHead head = read_group(*format, block.data(), codes.data());
      const auto [low, high] = std::minmax_element(values.begin(), values.end());
      const float wanted = group.asymmetric ? (std::max(*high, 0.0f) - std::min(*low, 0.0f)) / 15
                                            : std::max(std::fabs(*low), std::fabs(*high)) / 7.5f;
      EXPECT_EQ(head.scale, group.f32_scales ? wanted : to_float(to_bfloat16(wanted)));
      // Division, addition of the zero: two roundings of numbers below 32.
      const double slack = 2 * 32 * 0x1p-24;
      for (int i = 0; i < group.group; ++i) {
        const double place = double{values[i]} / head.scale + head.zero;
        const double nearest = std::clamp(place, 0.0, 15.0);
        ASSERT_LE(std::fabs(codes[i] - nearest), 0.5 + slack) << values[i];
      }
    }
  }
  // Scale 1: the peak is 7.5.
  std::vector<float> ties(32);
  for (int i = 0; i < 16; ++i) ties[i] = static_cast<float>(i) - 7.5f;
  std::vector<std::byte> block(18);
  std::vector<uint8_t> codes(32);
  quantize(quant_format(FormatId::kW4G32), ties.data(), 32, block.data());
  EXPECT_EQ(read_group(quant_format(FormatId::kW4G32), block.data(), codes.data()).scale, 1.0f);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(codes[i], std::min(15.0, std::nearbyint(i + 0.5))) << ties[i];
  }
}

TEST(ChannelFormatTest, RowsComeBackAndExpandExactly) {
  testing::FreshRandom random;
  std::mt19937_64& engine = random.engine();
  const QuantFormat& format = quant_format(FormatId::kW8C);
  for (const int64_t cols : {32, 96, 640}) {
    std::vector<int8_t> codes(static_cast<size_t>(cols));
    int32_t sum = 0;
    for (int8_t& code : codes) sum += code = static_cast<int8_t>(engine() & 0xff);
    const float scale = std::normal_distribution<float>()(engine);
    std::vector<std::byte> row(static_cast<size_t>(format.row_bytes(cols)));
    ASSERT_EQ(row.size(), static_cast<size_t>(8 + cols));
    write_channel_row(scale, codes.data(), cols, row.data());
    const ChannelRow read = read_channel_row(row.data());
    EXPECT_EQ(read.scale, scale);
    EXPECT_EQ(read.code_sum, sum);
    EXPECT_TRUE(std::equal(codes.begin(), codes.end(), read.codes));
    std::vector<float> values(codes.size());
    dequantize(format, row.data(), cols, values.data());
    for (int64_t i = 0; i < cols; ++i) ASSERT_EQ(values[i], scale * static_cast<float>(codes[i]));
  }
}

TEST(ChannelFormatTest, RoundsToTheNearestCode) {
  testing::FreshRandom random;
  const QuantFormat& format = quant_format(FormatId::kW8C);
  for (int round = 0; round < 50; ++round) {
    std::vector<float> values(256);
    float peak = 0;
    for (float& x : values) {
      x = std::normal_distribution<float>()(random.engine());
      peak = std::max(peak, std::fabs(x));
    }
    std::vector<std::byte> row(static_cast<size_t>(format.row_bytes(256)));
    quantize(format, values.data(), 256, row.data());
    const ChannelRow read = read_channel_row(row.data());
    EXPECT_EQ(read.scale, peak / 127);
    for (int i = 0; i < 256; ++i) {
      const double place = double{values[i]} / read.scale;
      ASSERT_LE(std::fabs(read.codes[i] - place), 0.5 + 2 * 128 * 0x1p-24);
    }
  }
  // Scale 1; half steps go to the even code.
  std::vector<float> ties(32);
  ties[0] = 127;
  ties[1] = 2.5f;
  ties[2] = 3.5f;
  ties[3] = -0.5f;
  std::vector<std::byte> row(40);
  quantize(format, ties.data(), 32, row.data());
  const int8_t* codes = read_channel_row(row.data()).codes;
  EXPECT_EQ(codes[0], 127);
  EXPECT_EQ(codes[1], 2);
  EXPECT_EQ(codes[2], 4);
  EXPECT_EQ(codes[3], 0);
}

}  // namespace
}  // namespace braid

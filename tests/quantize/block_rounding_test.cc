#include "quantize/block_rounding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "quant/schemes/schemes.h"
#include "support/fresh_seed.h"

namespace braid {
namespace {

constexpr int kBlock = 256;

double square_error(const std::vector<float>& x, const std::vector<float>& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
  return sum;
}

std::vector<float> rounded(FormatId id, const std::vector<float>& x) {
  const QuantFormat& format = quant_format(id);
  const auto count = static_cast<int64_t>(x.size());
  std::vector<std::byte> blocks(static_cast<size_t>(format.row_bytes(count)));
  round_blocks(format, x.data(), count, blocks.data());
  std::vector<float> y(x.size());
  dequantize(format, blocks.data(), count, y.data());
  return y;
}

float half(double x) { return to_float(to_half(static_cast<float>(x))); }

// By the range of each sub-block, without any search.
std::vector<float> plain_q4_k(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  for (size_t b = 0; b < x.size(); b += kBlock) {
    double scales[8], mins[8], top_scale = 0, top_min = 0;
    for (int j = 0; j < 8; ++j) {
      const auto [low, high] =
          std::minmax_element(x.begin() + b + j * 32, x.begin() + b + j * 32 + 32);
      mins[j] = std::max(0.0, -double{*low});
      scales[j] = (std::max(0.0, double{*high}) + mins[j]) / 15;
      top_scale = std::max(top_scale, scales[j]);
      top_min = std::max(top_min, mins[j]);
    }
    const double d = half(top_scale / 63), dmin = half(top_min / 63);
    for (int j = 0; j < 8; ++j) {
      const double scale = d > 0 ? d * std::clamp(std::round(scales[j] / d), 0.0, 63.0) : 0;
      const double min = dmin > 0 ? dmin * std::clamp(std::round(mins[j] / dmin), 0.0, 63.0) : 0;
      for (int i = 0; i < 32; ++i) {
        const size_t at = b + j * 32 + i;
        const double code =
            scale > 0 ? std::clamp(std::round((x[at] + min) / scale), 0.0, 15.0) : 0;
        y[at] = static_cast<float>(scale * code - min);
      }
    }
  }
  return y;
}

std::vector<float> plain_q6_k(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  for (size_t b = 0; b < x.size(); b += kBlock) {
    double scales[16], top = 0;
    for (int j = 0; j < 16; ++j) {
      scales[j] = 0;
      for (int i = 0; i < 16; ++i) {
        scales[j] = std::max(scales[j], std::abs(double{x[b + j * 16 + i]}) / 31);
      }
      top = std::max(top, scales[j]);
    }
    const double d = half(top / 127);
    for (int j = 0; j < 16; ++j) {
      const double scale = d > 0 ? d * std::round(scales[j] / d) : 0;
      for (int i = 0; i < 16; ++i) {
        const size_t at = b + j * 16 + i;
        const double code = scale > 0 ? std::clamp(std::round(x[at] / scale), -32.0, 31.0) : 0;
        y[at] = static_cast<float>(scale * code);
      }
    }
  }
  return y;
}

class BlockRoundingTest : public ::testing::Test {
 protected:
  // Like weights: rows of about one size, a few far out.
  std::vector<float> weights(int blocks, double shift) {
    std::normal_distribution<float> normal(static_cast<float>(shift), 1.0f);
    std::vector<float> x(static_cast<size_t>(blocks) * kBlock);
    for (float& value : x) {
      value = 0.02f * normal(random_.engine()) * (random_.coin(0.01) ? 5.0f : 1.0f);
    }
    return x;
  }
  testing::FreshRandom random_;
};

TEST_F(BlockRoundingTest, TheSearchLosesLessThanTheRange) {
  for (const double shift : {0.0, 0.7, -2.0}) {
    const std::vector<float> x = weights(200, shift);
    const double q4 = square_error(x, rounded(FormatId::kQ4K, x));
    const double q6 = square_error(x, rounded(FormatId::kQ6K, x));
    EXPECT_LT(q4, 0.9 * square_error(x, plain_q4_k(x))) << shift;
    EXPECT_LT(q6, 0.95 * square_error(x, plain_q6_k(x))) << shift;
  }
}

// A step is what the range of a sub-block needs at most, and scales are rounded to 1/63 (q4_k) or
// 1/127 (q6_k) of the block's largest; with what float16 takes, twice half a step is never passed.
TEST_F(BlockRoundingTest, NoValueIsFarFromItself) {
  const std::vector<float> x = weights(50, 0.3);
  const std::vector<float> q4 = rounded(FormatId::kQ4K, x), q6 = rounded(FormatId::kQ6K, x);
  for (size_t b = 0; b < x.size(); b += kBlock) {
    float peak = 0;
    for (int i = 0; i < kBlock; ++i) peak = std::max(peak, std::abs(x[b + i]));
    for (int i = 0; i < kBlock; ++i) {
      ASSERT_LE(std::abs(q4[b + i] - x[b + i]), 2 * peak * (1.0f / 15 + 1.0f / 63));
      ASSERT_LE(std::abs(q6[b + i] - x[b + i]), 2 * peak * (1.0f / 62 + 1.0f / 127));
    }
  }
}

TEST_F(BlockRoundingTest, ZerosAndConstants) {
  for (const FormatId id : {FormatId::kQ4K, FormatId::kQ6K}) {
    for (const float c : {0.0f, 0.5f, -0.5f}) {
      const std::vector<float> x(kBlock, c);
      for (const float y : rounded(id, x)) ASSERT_NEAR(y, c, std::abs(c) / 500);
    }
    // Smaller than float16 scales can be.
    const std::vector<float> x(kBlock, 1e-12f);
    for (const float y : rounded(id, x)) ASSERT_NEAR(y, 0, 1e-6);
  }
}

// One sub-block among zeros; each sub-block in turn, so that all places of scales are met.
TEST_F(BlockRoundingTest, EverySubBlockHasItsOwnScale) {
  for (int j = 0; j < 16; ++j) {
    std::vector<float> x(kBlock, 0.0f);
    for (int i = 0; i < 16; ++i) x[j * 16 + i] = 0.01f * static_cast<float>(i - 5);
    for (const FormatId id : {FormatId::kQ4K, FormatId::kQ6K}) {
      const std::vector<float> y = rounded(id, x);
      for (int i = 0; i < kBlock; ++i) ASSERT_NEAR(y[i], x[i], 0.004) << j << " " << i;
    }
  }
}

}  // namespace
}  // namespace braid

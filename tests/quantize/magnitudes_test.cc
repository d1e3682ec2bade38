#include "quantize/magnitudes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "support/fresh_seed.h"

namespace braid {
namespace {

constexpr double kHalfBin = 0x1p-10;  // of a number, at most, from its bin's middle

std::vector<float> normal_numbers(testing::FreshRandom& random, size_t count) {
  std::vector<float> numbers(count);
  std::normal_distribution<float> normal;
  for (float& x : numbers) x = normal(random.engine());
  return numbers;
}

TEST(Magnitudes, MiddlesStandForTheirNumbers) {
  testing::FreshRandom random;
  std::uniform_real_distribution<float> mantissa(1, 2);
  for (int i = 0; i < 1000; ++i) {
    const float x =
        std::ldexp(mantissa(random.engine()), static_cast<int>(random.integer(-120, 120)));
    Magnitudes magnitudes;
    magnitudes.add(std::vector<float>{-x, 2 * x});
    EXPECT_EQ(magnitudes.largest(), 2 * x);
    const auto counts = magnitudes.counts();
    const auto bin = static_cast<size_t>(
        std::find_if(counts.begin(), counts.end(), [](uint64_t n) { return n > 0; }) -
        counts.begin());
    EXPECT_EQ(counts[bin], 1u);
    EXPECT_LE(std::abs(double{magnitudes.middle(bin)} - x), kHalfBin * x);
  }
}

TEST(Magnitudes, PartsAddUp) {
  testing::FreshRandom random;
  const std::vector<float> numbers = normal_numbers(random, 10'000);
  std::vector<BFloat16> rounded;
  for (const float x : numbers) rounded.push_back(to_bfloat16(x));
  Magnitudes whole, first, second;
  whole.add(numbers);
  whole.add(rounded);
  first.add(numbers);
  second.add(rounded);
  first.add(second);
  EXPECT_EQ(first.count(), 20'000);
  EXPECT_EQ(first.largest(), whole.largest());
  EXPECT_TRUE(std::ranges::equal(first.counts(), whole.counts()));
}

// Against the numbers themselves: an error e of a number that may be off by d is off by at most d,
// its square by 2·|e|·d + d².
TEST(Magnitudes, FitsAreThoseOfTheNumbers) {
  testing::FreshRandom random;
  const std::vector<float> numbers = normal_numbers(random, 100'000);
  Magnitudes magnitudes;
  magnitudes.add(numbers);
  for (const float share : {1.0f, 0.5f, 0.1f}) {
    const float scale = scale_by_range(magnitudes) * share;
    double error = 0, square = 0, open = 0;
    int64_t saturated = 0, at_the_edge = 0;
    for (const float x : numbers) {
      const double d = kHalfBin * std::abs(x), code = std::abs(x) / scale;
      const double e = std::abs(x) - std::min(std::nearbyint(code), 127.0) * scale;
      error += e * e;
      square += double{x} * x;
      open += 2 * std::abs(e) * d + d * d;
      if (std::abs(code - 127.5) * scale <= d) {
        ++at_the_edge;
      } else if (code > 127.5) {
        ++saturated;
      }
    }
    const ScaleFit fit = fit_of(magnitudes, scale);
    EXPECT_EQ(fit.count, 100'000);
    EXPECT_NEAR(fit.error, error, open);
    EXPECT_NEAR(fit.square, square, 2.1 * kHalfBin * square);
    EXPECT_GE(fit.saturated, saturated);
    EXPECT_LE(fit.saturated, saturated + at_the_edge);
    if (share == 1) {
      EXPECT_EQ(fit.saturated, 0);
      // A step's error is even over the step.
      EXPECT_NEAR(fit.error / 100'000, scale * scale / 12, 0.05 * scale * scale);
    }
  }
}

TEST(Magnitudes, RangesEndWithTheLargestNumber) {
  testing::FreshRandom random;
  for (int i = 0; i < 100; ++i) {
    Magnitudes magnitudes;
    std::vector<float> numbers = normal_numbers(random, 50);
    magnitudes.add(numbers);
    float largest = 0;
    for (const float x : numbers) largest = std::max(largest, std::abs(x));
    const float scale = scale_by_range(magnitudes);
    EXPECT_EQ(scale, largest / 127);
    EXPECT_EQ(std::nearbyint(largest / scale), 127);
  }
}

TEST(Magnitudes, NumbersOfNoSizeHaveAScaleToo) {
  Magnitudes magnitudes;
  EXPECT_EQ(scale_by_range(magnitudes), 1);
  magnitudes.add(std::vector<float>{0, -0.0f, 1e-38f});
  EXPECT_EQ(scale_by_range(magnitudes), 1);
  EXPECT_EQ(fit_of(magnitudes, 1).saturated, 0);
  magnitudes.add(std::vector<float>{std::numeric_limits<float>::quiet_NaN()});
  EXPECT_FALSE(std::isfinite(magnitudes.largest()));
}

}  // namespace
}  // namespace braid

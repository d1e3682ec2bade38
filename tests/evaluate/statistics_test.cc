#include "evaluate/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/fresh_seed.h"

namespace braid {
namespace {

// From tables of the distribution, to as many digits as they have.
TEST(StudentT, QuantilesAreThoseOfTheTables) {
  EXPECT_NEAR(student_t_quantile(0.975, 1), 12.7062, 5e-5);
  EXPECT_NEAR(student_t_quantile(0.975, 2), 4.3027, 5e-5);
  EXPECT_NEAR(student_t_quantile(0.975, 5), 2.5706, 5e-5);
  EXPECT_NEAR(student_t_quantile(0.975, 30), 2.0423, 5e-5);
  EXPECT_NEAR(student_t_quantile(0.975, 120), 1.9799, 5e-5);
  EXPECT_NEAR(student_t_quantile(0.975, 1e7), 1.95996, 1e-5);
  EXPECT_NEAR(student_t_quantile(0.95, 10), 1.8125, 5e-5);
  // With one degree of freedom it is the Cauchy distribution: tan(π (p − ½)).
  for (const double p : {0.6, 0.75, 0.9, 0.99, 0.9995}) {
    const double expected = std::tan(M_PI * (p - 0.5));
    EXPECT_NEAR(student_t_quantile(p, 1), expected, 1e-8 * expected);
  }
}

TEST(EstimateRatio, OfEqualWeightsIsTheMeanWithItsInterval) {
  testing::FreshRandom random;
  std::normal_distribution<double> normal(3, 2);
  std::vector<UnitSum> units;
  std::vector<double> values;
  const int64_t n = random.integer(2, 40);
  for (int64_t i = 0; i < n; ++i) {
    values.push_back(normal(random.engine()));
    units.push_back({values.back() * 7, 7});
  }
  double mean = 0, squares = 0;
  for (const double v : values) mean += v / static_cast<double>(n);
  for (const double v : values) squares += (v - mean) * (v - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(n - 1));
  const double quantile = student_t_quantile(0.975, static_cast<double>(n - 1));
  const double expected = quantile * deviation / std::sqrt(static_cast<double>(n));
  const Estimate estimate = estimate_ratio(units);
  // A mean is off by n·ε of the largest number at most, a difference from it by little more; so is,
  // however small, the root mean square of the differences.
  double largest = 0;
  for (const double v : values) largest = std::max(largest, std::abs(v));
  const double off =
      4 * static_cast<double>(n + 4) * std::numeric_limits<double>::epsilon() * largest;
  EXPECT_NEAR(estimate.mean, mean, off);
  EXPECT_NEAR(estimate.half_width, expected,
              quantile / std::sqrt(static_cast<double>(n - 1)) * off + 1e-12 * expected);
  EXPECT_EQ(estimate.num_units, n);
}

TEST(EstimateRatio, WeighsUnitsByTheirItems) {
  const std::vector<UnitSum> units = {{10, 10}, {30, 10}, {3, 1}};
  EXPECT_DOUBLE_EQ(estimate_ratio(units).mean, 43.0 / 21);
}

TEST(EstimateRatio, OneUnitHasNoInterval) {
  const std::vector<UnitSum> one = {{6, 3}};
  EXPECT_EQ(estimate_ratio(one).mean, 2);
  EXPECT_TRUE(std::isnan(estimate_ratio(one).half_width));
  EXPECT_TRUE(std::isnan(estimate_ratio({}).mean));
}

// How often an interval of 95 % holds the truth. Six standard errors are passed by chance once in
// 10^9 runs, and are 1.3 points; quantiles of the normal distribution would hold 5.7 points less.
TEST(EstimateRatio, IntervalsHoldTheTruthAsOftenAsTheySay) {
  testing::FreshRandom random;
  std::normal_distribution<double> normal(1, 3);
  constexpr int kRounds = 10000;
  int held = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<UnitSum> units;
    for (int i = 0; i < 6; ++i) units.push_back({normal(random.engine()), 1});
    const Estimate estimate = estimate_ratio(units);
    held += std::abs(estimate.mean - 1) <= estimate.half_width ? 1 : 0;
  }
  EXPECT_NEAR(held, 0.95 * kRounds, 6 * std::sqrt(0.95 * 0.05 * kRounds));
}

}  // namespace
}  // namespace braid

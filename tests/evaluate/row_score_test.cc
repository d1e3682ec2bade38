#include "evaluate/row_score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/cpu_features.h"
#include "evaluate/row_score_kernels.h"
#include "support/fresh_seed.h"

namespace braid {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

class RowScoreTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    previous_ = active_isa();
    force_isa(GetParam());
  }
  void TearDown() override { force_isa(previous_); }

 private:
  Isa previous_ = Isa::kPortable;
};

std::vector<float> random_logits(testing::FreshRandom& random, int64_t n, double scale) {
  std::normal_distribution<float> normal(0, static_cast<float>(scale));
  std::vector<float> logits(static_cast<size_t>(n));
  for (float& x : logits) x = normal(random.engine());
  return logits;
}

long double log_sum_exp(std::span<const float> logits) {
  long double highest = -std::numeric_limits<long double>::infinity(), sum = 0;
  for (const float x : logits) highest = std::max<long double>(highest, x);
  for (const float x : logits) sum += std::exp(x - highest);
  return highest + std::log(sum);
}

// Each of the n positive terms is within 2 ulp and is added at most n times: a sum is off by at
// most (n + 2)·ε of itself, its logarithm by as much.
double sum_error(size_t n) { return static_cast<double>(n + 4) * kEpsilon; }

TEST_P(RowScoreTest, EqualsThePlainFormulas) {
  testing::FreshRandom random;
  for (const int64_t n : {1, 2, 3, 7, 8, 15, 16, 17, 31, 63, 64, 65, 100, 1000, 32771}) {
    const double scale = random.pick(std::vector<double>{0.01, 1, 10, 60});
    const std::vector<float> p = random_logits(random, n, scale);
    std::vector<float> q = p;
    const bool near = random.coin();
    const std::vector<float> change = random_logits(random, n, near ? 1e-3 : scale);
    for (size_t i = 0; i < q.size(); ++i) q[i] += change[i];
    const auto target = static_cast<int32_t>(random.integer(0, n - 1));

    const long double p_lse = log_sum_exp(p), q_lse = log_sum_exp(q);
    long double kl = 0, magnitude = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      const long double share = std::exp(p[i] - p_lse);
      kl += share * ((p[i] - p_lse) - (q[i] - q_lse));
      magnitude += share * std::abs(static_cast<long double>(p[i]) - q[i]);
    }
    const double largest = 6 * scale * 2;  // of the numbers that are subtracted from each other
    const double tolerance = sum_error(p.size()) + 8 * kEpsilon * largest;

    const TokenScore score = score_row(q, p, target);
    EXPECT_NEAR(score.nll, static_cast<double>(q_lse - q[target]), tolerance) << n;
    EXPECT_NEAR(score.reference_nll, static_cast<double>(p_lse - p[target]), tolerance) << n;
    EXPECT_NEAR(score.kl, static_cast<double>(kl),
                2 * tolerance + 2 * sum_error(p.size()) * static_cast<double>(magnitude))
        << n;
    EXPECT_GE(score.kl, 0);
    EXPECT_EQ(score.top, std::max_element(q.begin(), q.end()) - q.begin());
    EXPECT_EQ(score.reference_top, std::max_element(p.begin(), p.end()) - p.begin());

    const TokenScore alone = score_row(q, target);
    EXPECT_NEAR(alone.nll, score.nll, 2 * tolerance);
    EXPECT_EQ(alone.top, score.top);
  }
}

TEST_P(RowScoreTest, EqualRowsDivergeByExactlyNothing) {
  testing::FreshRandom random;
  for (int round = 0; round < 50; ++round) {
    const std::vector<float> p = random_logits(random, random.integer(1, 5000), 8);
    const TokenScore score = score_row(p, p, 0);
    EXPECT_EQ(score.kl, 0);
    EXPECT_EQ(score.nll, score.reference_nll);
    EXPECT_EQ(score.top, score.reference_top);
  }
}

TEST_P(RowScoreTest, ExtremeLogitsStayFinite) {
  const float huge = 3e38f;
  const std::vector<float> p = {huge, -huge, 0, 1}, q = {-huge, huge, 0, 1};
  const TokenScore score = score_row(q, p, 0);
  EXPECT_EQ(score.reference_nll, 0);
  EXPECT_EQ(score.nll, 2 * static_cast<double>(huge));
  EXPECT_TRUE(std::isfinite(score.kl));
  EXPECT_GT(score.kl, 1e38);
}

TEST_P(RowScoreTest, ExponentialIsWithinTwoUlp) {
  testing::FreshRandom random;
  const RowScoreKernels& kernels = BRAID_KERNELS(kRowScoreKernels);
  std::uniform_real_distribution<double> shift(0, 690);
  for (int round = 0; round < 20000; ++round) {
    const double x = shift(random.engine());
    const float zero = 0;
    const double expected = std::exp(-x);
    EXPECT_NEAR(kernels.sum_exp(&zero, 1, x), expected, 2 * kEpsilon * expected) << x;
  }
  const float zero = 0;
  EXPECT_EQ(kernels.sum_exp(&zero, 1, 0), 1);
  EXPECT_LT(kernels.sum_exp(&zero, 1, 1e30), 1e-300);
}

INSTANTIATE_TEST_SUITE_P(AllIsas, RowScoreTest, ::testing::ValuesIn(supported_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

}  // namespace
}  // namespace braid

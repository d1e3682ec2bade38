// Frequencies of drawn tokens against the exact distribution. Keys are fixed, so a result never
// changes from run to run; each comparison would fail by chance for one key in a thousand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "sampling/sampler.h"

namespace braid {
namespace {

constexpr int kDraws = 40000;

// Upper 0.1% point of the chi-square distribution (Wilson and Hilferty's approximation, good to a
// per cent for three degrees of freedom and better for more).
double critical_value(int degrees) {
  const double z = 3.0902;
  const double a = 2.0 / (9.0 * degrees);
  return degrees * std::pow(1 - a + z * std::sqrt(a), 3);
}

// The distribution by its definition, in double and with a full sort.
std::vector<double> exact(const std::vector<float>& logits, const SamplingParams& params) {
  const size_t size = logits.size();
  std::vector<size_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (params.top_k > 0) order.resize(std::min(size, static_cast<size_t>(params.top_k)));
  std::vector<double> p(size, 0);
  double total = 0;
  for (const size_t i : order) {
    p[i] = std::exp(double{logits[i]} / params.temperature);
    total += p[i];
  }
  double before = 0;
  const double likeliest = p[order[0]];
  double kept = 0;
  for (const size_t i : order) {
    const double weight = p[i];
    if (before >= params.top_p * total || weight < params.min_p * likeliest) p[i] = 0;
    before += weight;
    kept += p[i];
  }
  for (double& x : p) x /= kept;
  return p;
}

struct ChiSquare {
  double statistic = 0;
  int degrees = -1;
};

ChiSquare compare(const std::vector<float>& logits, const SamplingParams& params,
                  const std::vector<double>& expected, uint64_t seed) {
  Sampler sampler;
  std::vector<int> counts(logits.size(), 0);
  for (uint64_t i = 0; i < kDraws; ++i) {
    // Positions and requests both vary.
    const SamplingKey key{.seed = seed, .request = i % 7, .position = i / 7};
    ++counts[sampler.sample(logits, params, nullptr, key)->token];
  }
  ChiSquare result;
  double rare_expected = 0;
  double rare_count = 0;
  const auto add_cell = [&](double count, double mean) {
    result.statistic += (count - mean) * (count - mean) / mean;
    ++result.degrees;
  };
  for (size_t i = 0; i < logits.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " is excluded";
    } else if (expected[i] * kDraws < 10) {
      rare_expected += expected[i] * kDraws;
      rare_count += counts[i];
    } else {
      add_cell(counts[i], expected[i] * kDraws);
    }
  }
  if (rare_expected >= 10) add_cell(rare_count, rare_expected);
  return result;
}

std::vector<float> test_logits() {
  std::vector<float> logits;
  for (int i = 0; i < 60; ++i) logits.push_back(3 * std::sin(static_cast<float>(7 * i + 1)));
  return logits;
}

TEST(SamplerDistribution, EveryFilterAndTheirMixture) {
  const SamplingParams cases[] = {
      {},
      {.temperature = 0.5f},
      {.temperature = 1.7f},
      {.top_k = 5},
      {.top_p = 0.8f},
      {.min_p = 0.2f},
      {.temperature = 1.3f, .top_k = 20, .top_p = 0.9f},
      {.temperature = 0.7f, .top_k = 30, .top_p = 0.95f, .min_p = 0.05f},
  };
  const std::vector<float> logits = test_logits();
  uint64_t seed = 1;
  for (const SamplingParams& params : cases) {
    const ChiSquare result = compare(logits, params, exact(logits, params), seed);
    ASSERT_GE(result.degrees, 3);
    EXPECT_LT(result.statistic, critical_value(result.degrees)) << "case " << seed;
    ++seed;
  }
}

// The comparison is sharp enough to tell neighbouring settings apart.
TEST(SamplerDistribution, AWrongTemperatureIsNoticed) {
  const std::vector<float> logits = test_logits();
  const ChiSquare result =
      compare(logits, {.temperature = 1}, exact(logits, {.temperature = 1.1f}), 1);
  EXPECT_GT(result.statistic, critical_value(result.degrees));
}

// A large vocabulary: the draw walks a quarter of a million weights.
TEST(SamplerDistribution, LargeVocabularyIsCoveredEvenly) {
  constexpr int kVocab = 262144;
  constexpr int kCells = 16;
  constexpr int kFewDraws = 200;
  const std::vector<float> logits(kVocab, 0.25f);
  Sampler sampler;
  std::vector<int> counts(kCells, 0);
  for (uint64_t i = 0; i < kFewDraws; ++i) {
    ++counts[sampler.sample(logits, {}, nullptr, {.seed = 5, .position = i})->token /
             (kVocab / kCells)];
  }
  double statistic = 0;
  const double mean = static_cast<double>(kFewDraws) / kCells;
  for (const int count : counts) statistic += (count - mean) * (count - mean) / mean;
  EXPECT_LT(statistic, critical_value(kCells - 1));
}

}  // namespace
}  // namespace braid

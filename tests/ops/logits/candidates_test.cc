// The filters against plain ones that sort everything.
#include "ops/logits/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/fresh_seed.h"

namespace braid {
namespace {

using testing::FreshRandom;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

std::vector<float> random_logits(FreshRandom& random, int64_t size) {
  const auto deviation = static_cast<float>(random.integer(0, 8));
  std::normal_distribution<float> normal;
  const bool coarse = random.coin();  // many ties
  std::vector<float> logits;
  for (int64_t i = 0; i < size; ++i) {
    float logit = deviation * normal(random.engine());
    if (coarse) logit = std::round(logit);
    logits.push_back(random.coin(0.05) ? kMinusInfinity : logit);
  }
  return logits;
}

std::vector<Candidate> sorted(std::vector<Candidate> candidates) {
  std::sort(candidates.begin(), candidates.end(), ranks_before);
  return candidates;
}

std::vector<int32_t> tokens_of(const std::vector<Candidate>& candidates) {
  std::vector<int32_t> tokens;
  for (const Candidate& c : candidates) tokens.push_back(c.token);
  return tokens;
}

std::vector<int32_t> sorted_tokens_of(const std::vector<Candidate>& candidates) {
  std::vector<int32_t> tokens = tokens_of(candidates);
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

void weigh(std::vector<Candidate>& candidates) {
  float highest = kMinusInfinity;
  for (const Candidate& c : candidates) highest = std::max(highest, c.logit);
  for (Candidate& c : candidates) c.weight = std::exp(c.logit - highest);
}

int64_t random_size(FreshRandom& random) {
  return random.pick(std::vector<int64_t>{1, 2, 3, 10, 100, 1000, 5000});
}

TEST(Candidates, TopKEqualsSorting) {
  FreshRandom random;
  std::vector<Candidate> candidates;
  for (int round = 0; round < 300; ++round) {
    const std::vector<float> logits = random_logits(random, random_size(random));
    select_all(logits, candidates);
    std::vector<Candidate> expected = sorted(candidates);
    // Both ways of selecting: below and above 1024.
    const int64_t k = random.coin() ? random.integer(1, 20) : random.integer(1, 5100);
    if (static_cast<size_t>(k) < expected.size()) expected.resize(static_cast<size_t>(k));
    select_top_k(logits, k, candidates);
    ASSERT_EQ(tokens_of(candidates), sorted_tokens_of(expected)) << "k " << k;
  }
}

TEST(Candidates, TopPEqualsSorting) {
  FreshRandom random;
  std::vector<Candidate> candidates;
  std::vector<Candidate> scratch;
  for (int round = 0; round < 300; ++round) {
    select_all(random_logits(random, random_size(random)), candidates);
    if (candidates.empty()) continue;
    weigh(candidates);
    const double top_p = std::uniform_real_distribution<double>(0.001, 0.999)(random.engine());
    double total = 0;
    for (const Candidate& c : candidates) total += c.weight;
    const std::vector<Candidate> order = sorted(candidates);
    keep_top_p(candidates, top_p, scratch);

    ASSERT_FALSE(candidates.empty());
    std::vector<Candidate> expected(order.begin(), order.begin() + candidates.size());
    ASSERT_EQ(tokens_of(candidates), sorted_tokens_of(expected)) << "not the first in rank";
    // Enough, and not without the last one, up to the rounding of two sums in different orders.
    const double rounding = static_cast<double>(order.size()) * 0x1p-52 * total;
    double kept = 0;
    for (const Candidate& c : expected) kept += c.weight;
    ASSERT_GE(kept, top_p * total - rounding);
    ASSERT_LT(kept - expected.back().weight, top_p * total + rounding);
  }
}

TEST(Candidates, TopPOfKnownWeights) {
  // Weights 8 4 2 1 1 of 16: exact in binary.
  const auto make = [] {
    return std::vector<Candidate>{{1, 0, 2}, {3, 1, 8}, {0, 2, 1}, {2, 3, 4}, {0, 4, 1}};
  };
  const std::vector<std::pair<double, std::vector<int32_t>>> cases = {
      {1e-9, {1}},      {0.5, {1}},         {0.50001, {1, 3}},   {0.75, {1, 3}},
      {0.8, {0, 1, 3}}, {0.875, {0, 1, 3}}, {0.9, {0, 1, 2, 3}}, {0.99, {0, 1, 2, 3, 4}},
  };
  std::vector<Candidate> scratch;
  for (const auto& [top_p, expected] : cases) {
    std::vector<Candidate> candidates = make();
    keep_top_p(candidates, top_p, scratch);
    EXPECT_EQ(tokens_of(candidates), expected) << top_p;
  }
}

TEST(Candidates, MinPKeepsThoseNearTheLikeliest) {
  std::vector<Candidate> candidates = {{0, 0, 0.5f}, {0, 1, 1}, {0, 2, 0.125f}, {0, 3, 0.25f}};
  keep_min_p(candidates, 0.25);
  EXPECT_EQ(tokens_of(candidates), (std::vector<int32_t>{0, 1, 3}));
  keep_min_p(candidates, 1);
  EXPECT_EQ(tokens_of(candidates), (std::vector<int32_t>{1}));
}

TEST(Candidates, AWholeVocabularyOfEqualsIsSelectedInOrder) {
  const std::vector<float> logits(262144, 1.5f);
  std::vector<Candidate> candidates;
  std::vector<Candidate> scratch;
  for (const int64_t k : {1, 64, 1024, 1025, 200000}) {
    select_top_k(logits, k, candidates);
    ASSERT_EQ(static_cast<int64_t>(candidates.size()), k);
    EXPECT_EQ(candidates.front().token, 0);
    EXPECT_EQ(candidates.back().token, k - 1);
  }
  select_all(logits, candidates);
  weigh(candidates);
  keep_top_p(candidates, 0.5, scratch);
  EXPECT_EQ(candidates.size(), 131072u);
  EXPECT_EQ(candidates.back().token, 131071);
}

}  // namespace
}  // namespace braid

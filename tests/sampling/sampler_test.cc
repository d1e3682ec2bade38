#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "ops/logits/row_scan.h"
#include "support/fresh_seed.h"

namespace braid {
namespace {

using testing::FreshRandom;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int32_t greedy(std::vector<float> logits, SamplingParams params = {},
               const TokenHistory* history = nullptr) {
  params.temperature = 0;
  Sampler sampler;
  const auto sampled = sampler.sample(logits, params, history, {});
  return sampled ? sampled->token : -1;
}

// All tokens that come up in many draws.
std::set<int32_t> support(std::span<const float> logits, const SamplingParams& params,
                          const TokenHistory* history = nullptr) {
  Sampler sampler;
  std::set<int32_t> tokens;
  for (uint64_t position = 0; position < 2000; ++position) {
    tokens.insert(
        sampler.sample(logits, params, history, {.seed = 3, .position = position})->token);
  }
  return tokens;
}

TEST(Sampler, GreedyTakesTheHighestAndOfEqualsTheLowestId) {
  EXPECT_EQ(greedy({1, 3, 2}), 1);
  EXPECT_EQ(greedy({1, 3, 3, 3}), 1);
  EXPECT_EQ(greedy({0, -0.0f}), 0);
  EXPECT_EQ(greedy({-5, -kInfinity, -4}), 2);
}

TEST(Sampler, GreedyIgnoresTheFilters) {
  EXPECT_EQ(greedy({1, 3, 2}, {.top_k = 2, .top_p = 0.1f, .min_p = 0.9f}), 1);
}

TEST(Sampler, BadLogitsAreNeverDrawn) {
  EXPECT_EQ(greedy({kNan, 1, 0}), 1);
  EXPECT_EQ(greedy({1, kNan, 2}), 2);
  EXPECT_EQ(greedy({1, kInfinity, kInfinity}), 1);
  EXPECT_EQ(greedy({kNan, -kInfinity}), -1);
  const std::vector<float> logits = {kNan, 1, -kInfinity, 1, kNan};
  EXPECT_EQ(support(logits, {}), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(support(logits, {.top_k = 4}), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(support(logits, {.top_p = 0.999f}), (std::set<int32_t>{1, 3}));
  const std::vector<float> infinite = {0, kInfinity, 3};
  EXPECT_EQ(support(infinite, {}), (std::set<int32_t>{1}));
}

TEST(Sampler, NothingToDrawIsAnOrdinaryOutcome) {
  Sampler sampler;
  const std::vector<float> empty = {-kInfinity, kNan};
  const std::vector<float> fine = {1, 2};
  for (const float temperature : {0.f, 1.f}) {
    for (const int32_t top_k : {0, 1}) {
      const SamplingParams params{.temperature = temperature, .top_k = top_k};
      EXPECT_FALSE(sampler.sample(empty, params, nullptr, {}));
      SamplingParams all_suppressed = params;
      all_suppressed.suppress_ids = {0, 1};
      EXPECT_FALSE(sampler.sample(fine, all_suppressed, nullptr, {}));
    }
  }
}

TEST(Sampler, ExtremeTemperatures) {
  const std::vector<float> logits = {10, 10.001f, -30};
  EXPECT_EQ(support(logits, {.temperature = 1e-38f}), (std::set<int32_t>{1}));
  EXPECT_EQ(support(logits, {.temperature = std::numeric_limits<float>::denorm_min()}),
            (std::set<int32_t>{1}));
  EXPECT_EQ(support(logits, {.temperature = 1e38f}), (std::set<int32_t>{0, 1, 2}));
  const float largest = std::numeric_limits<float>::max();
  const std::vector<float> far = {-largest, largest};
  EXPECT_EQ(support(far, {}), (std::set<int32_t>{1}));
}

TEST(Sampler, PenaltiesCountPromptAndOutputAsDocumented) {
  TokenHistory history;
  history.add_prompt(std::vector<int32_t>{0, 1});
  for (const int32_t token : {1, 2, 2}) history.add_output(token);
  // Repetition: tokens 0, 1 and 2 halve, a negative logit doubles.
  EXPECT_EQ(greedy({4, 3.9f, 3.8f, 2.1f}, {.repetition_penalty = 2}, &history), 3);
  EXPECT_EQ(greedy({4.4f, 3.9f, 3.8f, 2.1f}, {.repetition_penalty = 2}, &history), 0);
  EXPECT_EQ(greedy({-1, -1, -1, -1.9f}, {.repetition_penalty = 2}, &history), 3);
  EXPECT_EQ(greedy({-1, -1, -1, -2.1f}, {.repetition_penalty = 2}, &history), 0);
  // Presence: tokens 1 and 2 lose one, token 0 (prompt only) nothing.
  EXPECT_EQ(greedy({1.2f, 2.1f, 2, 0}, {.presence_penalty = 1}, &history), 0);
  EXPECT_EQ(greedy({1.0f, 2.1f, 2, 0}, {.presence_penalty = 1}, &history), 1);
  // Frequency: token 1 loses one, token 2 two.
  EXPECT_EQ(greedy({0, 2, 2.9f, 0}, {.frequency_penalty = 1}, &history), 1);
  EXPECT_EQ(greedy({0, 2, 3.1f, 0}, {.frequency_penalty = 1}, &history), 2);
  // Both, after repetition: 6 / 2 - 2 - 1.
  EXPECT_EQ(
      greedy({-9, -9, 6, -0.1f},
             {.repetition_penalty = 2, .presence_penalty = 1, .frequency_penalty = 1}, &history),
      2);
  EXPECT_EQ(
      greedy({-9, -9, 6, 0.1f},
             {.repetition_penalty = 2, .presence_penalty = 1, .frequency_penalty = 1}, &history),
      3);
}

TEST(Sampler, BiasComesAfterPenaltiesAndSuppressionAfterBias) {
  TokenHistory history;
  history.add_prompt(std::vector<int32_t>{0});
  // 4 / 2 + 3 = 5, not (4 + 3) / 2 = 3.5.
  const SamplingParams biased{.repetition_penalty = 2, .logit_bias = {{0, 3}}};
  EXPECT_EQ(greedy({4, 4.5f}, biased, &history), 0);
  EXPECT_EQ(greedy({1, 2, 3}, {.logit_bias = {{0, 100}}, .suppress_ids = {0}}), 2);
  // A bias cannot bring back what the model excludes.
  EXPECT_EQ(greedy({-kInfinity, 1}, {.logit_bias = {{0, 100}}}), 1);
}

TEST(Sampler, FiltersComeAfterTemperature) {
  // exp(1/T): at T = 1 the second has 0.37 of the first's weight, at T = 4 0.78.
  const std::vector<float> logits = {1, 0};
  EXPECT_EQ(support(logits, {.min_p = 0.5f}), (std::set<int32_t>{0}));
  EXPECT_EQ(support(logits, {.temperature = 4, .min_p = 0.5f}), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(support(logits, {.top_p = 0.7f}), (std::set<int32_t>{0}));
  EXPECT_EQ(support(logits, {.temperature = 4, .top_p = 0.7f}), (std::set<int32_t>{0, 1}));
}

TEST(Sampler, TopPIsOfTheMassThatTopKLeaves) {
  // Weights 4 3 2 1: of the first two, 4 are 57%; of all, 40%.
  const std::vector<float> logits = {std::log(4.f), std::log(3.f), std::log(2.f), 0};
  EXPECT_EQ(support(logits, {.top_p = 0.5f}), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(support(logits, {.top_k = 2, .top_p = 0.5f}), (std::set<int32_t>{0}));
  EXPECT_EQ(support(logits, {.top_k = 3}), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(support(logits, {.top_k = -1}), (std::set<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(support(logits, {.min_p = 0.6f}), (std::set<int32_t>{0, 1}));
}

TEST(Sampler, ADrawDependsOnItsKeyAlone) {
  FreshRandom random;
  std::normal_distribution<float> normal(0, 2);
  std::vector<std::vector<float>> rows(20, std::vector<float>(300));
  for (auto& row : rows) {
    for (float& logit : row) logit = normal(random.engine());
  }
  const SamplingParams params{.top_k = 50, .top_p = 0.9f};
  const auto key = [](size_t i) { return SamplingKey{.seed = 9, .request = i, .position = 7 * i}; };
  Sampler forward;
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < rows.size(); ++i) {
    tokens.push_back(forward.sample(rows[i], params, nullptr, key(i))->token);
  }
  for (size_t i = rows.size(); i-- > 0;) {
    Sampler alone;
    EXPECT_EQ(alone.sample(rows[i], params, nullptr, key(i))->token, tokens[i]);
    EXPECT_EQ(forward.sample(rows[i], params, nullptr, key(i))->token, tokens[i]);
  }
}

TEST(Sampler, LogprobsAreTheModelsWhateverTheProcessors) {
  FreshRandom random;
  std::normal_distribution<float> normal(0, 3);
  constexpr int kSize = 400;
  std::vector<float> logits(kSize);
  for (float& logit : logits) logit = normal(random.engine());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  // exp in float32 of numbers to 20: relative error a few times 20 * 2^-24 in the sum, and as much
  // in the rounding of the result.
  const double tolerance = 100 * 0x1p-24;

  TokenHistory history;
  history.add_prompt(std::vector<int32_t>{1, 2, 3});
  const SamplingParams params{.temperature = 0.5f,
                              .top_k = 1,
                              .repetition_penalty = 1.5f,
                              .logit_bias = {{7, 100}},
                              .num_logprobs = 5};
  Sampler sampler;
  const auto sampled = sampler.sample(logits, params, &history, {});
  ASSERT_TRUE(sampled);
  EXPECT_EQ(sampled->token, 7);
  EXPECT_NEAR(*sampled->logprob, logits[7] - std::log(sum), tolerance);
  ASSERT_EQ(sampled->top_logprobs.size(), 5u);
  EXPECT_EQ(sampled->top_logprobs[0].token, argmax(logits));
  float last = 0;
  for (const TokenLogprob& entry : sampled->top_logprobs) {
    EXPECT_NEAR(entry.logprob, logits[entry.token] - std::log(sum), tolerance);
    EXPECT_LE(entry.logprob, last);
    last = entry.logprob;
  }
  EXPECT_FALSE(sampler.sample(logits, {}, nullptr, {})->logprob);
  EXPECT_TRUE(sampler.sample(logits, {.num_logprobs = 0}, nullptr, {})->top_logprobs.empty());
}

TEST(Sampler, LogprobsAreFinite) {
  const float largest = std::numeric_limits<float>::max();
  for (const std::vector<float>& logits :
       {std::vector<float>{-kInfinity, 1, kNan, 1}, std::vector<float>{kInfinity, 0, -kInfinity},
        std::vector<float>{largest, -largest, 0}, std::vector<float>{-largest, -largest}}) {
    Sampler sampler;
    const auto sampled = sampler.sample(logits, {.top_k = 1, .num_logprobs = 20}, nullptr, {});
    ASSERT_TRUE(sampled);
    EXPECT_TRUE(std::isfinite(*sampled->logprob));
    EXPECT_LE(*sampled->logprob, 0);
    EXPECT_LE(sampled->top_logprobs.size(), logits.size());
    for (const TokenLogprob& entry : sampled->top_logprobs) {
      EXPECT_TRUE(std::isfinite(entry.logprob)) << entry.token;
      EXPECT_GE(entry.logprob, kMinLogprob);
    }
  }
  // A drawn token that the model all but excludes.
  Sampler sampler;
  const std::vector<float> logits = {0, -largest};
  const auto sampled =
      sampler.sample(logits, {.suppress_ids = {0}, .num_logprobs = 2}, nullptr, {});
  EXPECT_EQ(*sampled->logprob, kMinLogprob);
}

TEST(Sampler, EqualLogitsAreListedById) {
  Sampler sampler;
  const std::vector<float> logits = {1, 2, 2, 1};
  const auto sampled = sampler.sample(logits, {.temperature = 0, .num_logprobs = 3}, nullptr, {});
  EXPECT_EQ(sampled->token, 1);
  ASSERT_EQ(sampled->top_logprobs.size(), 3u);
  EXPECT_EQ(sampled->top_logprobs[0].token, 1);
  EXPECT_EQ(sampled->top_logprobs[1].token, 2);
  EXPECT_EQ(sampled->top_logprobs[2].token, 0);
}

}  // namespace
}  // namespace braid

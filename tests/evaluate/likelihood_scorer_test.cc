#include "evaluate/likelihood_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "evaluate/plain_likelihood.h"

namespace braid {
namespace {

using testing::exact;
using testing::kTiny;
using testing::model_path;

class LikelihoodScorerTest : public ::testing::TestWithParam<const char*> {};

TEST_P(LikelihoodScorerTest, AnyBatchGivesWhatEachSequenceGivesAlone) {
  testing::FreshRandom random;
  const LoadedModel loaded =
      LoadedModel::load(model_path(GetParam()).string(), {.with_tokenizer = false});
  const int64_t vocab = loaded.model().vocab_size();
  std::vector<std::vector<int32_t>> ids;
  std::vector<ScoredSequence> sequences;
  for (int i = 0; i < 12; ++i) {
    const int64_t size = random.coin(0.3) ? random.integer(2, 4) : random.integer(2, 200);
    ids.push_back(testing::random_ids(random, size, vocab));
  }
  for (const auto& each : ids) {
    sequences.push_back({each, random.coin() ? 1 : random.integer(1, std::ssize(each) - 1)});
  }
  LikelihoodScorer scorer({.model = exact(loaded),
                           .threads = {.num_threads = static_cast<int>(random.integer(1, 3))},
                           .max_sequence_tokens = 200,
                           .max_sequences = random.integer(0, 5),
                           .batch_tokens = random.integer(1, 300)});
  int64_t computed = 0, expected = 0;
  std::vector<int> seen(ids.size());
  scorer.run(
      sequences,
      [&](size_t i, std::span<const TokenScore> scores) {
        ++seen[i];
        // Without the last token, which the scorer has no use for: the last chunk of a recurrent
        // layer rounds otherwise if it is one token longer.
        const auto rows =
            testing::plain_logits(loaded.model(), std::span(ids[i]).first(ids[i].size() - 1));
        const auto first = static_cast<size_t>(sequences[i].first_scored);
        ASSERT_EQ(scores.size(), ids[i].size() - first);
        for (size_t t = first; t < ids[i].size(); ++t) {
          EXPECT_NEAR(scores[t - first].nll, testing::plain_nll(rows[t - 1], ids[i][t]), kTiny);
        }
      },
      [&](int64_t count) { computed += count; });
  for (const auto& each : ids) expected += std::ssize(each) - 1;
  EXPECT_THAT(seen, ::testing::Each(1));
  EXPECT_EQ(computed, expected);
}

INSTANTIATE_TEST_SUITE_P(Families, LikelihoodScorerTest,
                         ::testing::Values("gguf/gemma4_moe_bf16.gguf", "gemma3", "qwen3_next"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

TEST(LikelihoodScorer, ComparesWithAReference) {
  testing::FreshRandom random;
  const LoadedModel loaded = LoadedModel::load(model_path("gguf/gemma4_moe_bf16.gguf").string(),
                                               {.with_tokenizer = false});
  const LoadedModel other =
      LoadedModel::load(model_path("gemma3").string(), {.with_tokenizer = false});
  const std::vector<int32_t> ids = testing::random_ids(random, 50, loaded.model().vocab_size());
  const auto rows = testing::plain_logits(loaded.model(), ids);
  const auto reference = testing::plain_logits(other.model(), ids);
  LikelihoodScorer scorer({.model = exact(loaded),
                           .reference = exact(other),
                           .max_sequence_tokens = 50,
                           .batch_tokens = random.integer(1, 64)});
  const std::vector<ScoredSequence> sequences = {{ids, 1}};
  scorer.run(sequences, [&](size_t, std::span<const TokenScore> scores) {
    for (size_t t = 1; t < ids.size(); ++t) {
      const TokenScore& score = scores[t - 1];
      EXPECT_NEAR(score.nll, testing::plain_nll(rows[t - 1], ids[t]), kTiny);
      EXPECT_NEAR(score.reference_nll, testing::plain_nll(reference[t - 1], ids[t]), kTiny);
      EXPECT_NEAR(score.kl, testing::plain_kl(reference[t - 1], rows[t - 1]), kTiny);
      EXPECT_GT(score.kl, 0);
    }
  });
}

TEST(LikelihoodScorer, RefusesWhatCannotBeCompared) {
  const LoadedModel gemma =
      LoadedModel::load(model_path("gemma3").string(), {.with_tokenizer = false});
  const LoadedModel qwen =
      LoadedModel::load(model_path("qwen3_next").string(), {.with_tokenizer = false});
  const auto message = [](const ScorerOptions& options) -> std::string {
    try {
      LikelihoodScorer scorer(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message({.model = exact(gemma), .reference = exact(qwen), .max_sequence_tokens = 8}),
              ::testing::AllOf(::testing::HasSubstr("vocabulary of 304"),
                               ::testing::HasSubstr("one of 160")));
  EXPECT_THAT(message({.model = exact(gemma), .max_sequence_tokens = 5000}),
              ::testing::HasSubstr("context is 4096"));
}

}  // namespace
}  // namespace braid

#include "evaluate/multiple_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "evaluate/plain_likelihood.h"

namespace braid {
namespace {

using testing::exact;
using testing::model_path;

class MultipleChoiceTest : public ::testing::Test {
 protected:
  ChoiceScore score(std::span<const ChoiceItem> items, bool add_bos,
                    int64_t max_sequence_tokens = 128) {
    LikelihoodScorer scorer({.model = exact(loaded_),
                             .threads = {.num_threads = 1},
                             .max_sequence_tokens = max_sequence_tokens,
                             .batch_tokens = 40});
    return score_choices(scorer, loaded_.tokenizer(), items, "f.jsonl", add_bos);
  }

  testing::FreshRandom random_;
  LoadedModel loaded_ = LoadedModel::load(model_path("gguf/gemma4_moe_bf16.gguf").string());
};

TEST_F(MultipleChoiceTest, EqualsBruteForce) {
  const Tokenizer& tokenizer = loaded_.tokenizer();
  const std::vector<ChoiceItem> items = {
      {.id = "a",
       .query = "the cat sat on",
       .choices = {"the mat", "a", "it and the hat"},
       .gold = 0},
      {.id = "b", .query = "", .choices = {"one", "two words"}, .gold = 1},
      {.id = "c", .query = "no blank", .choices = {"s", "\nnew line"}, .gold = 0, .delimiter = ""},
      {.id = "d", .query = "same", .choices = {"choice", "choice"}, .gold = 0}};
  const ChoiceScore result = score(items, /*add_bos=*/true);
  double right = 0, right_by_length = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    std::vector<double> sums, by_length;
    for (const std::string& choice : items[i].choices) {
      // Everything but the choice: blanks at its end are scored with the choice.
      std::string before = items[i].query + items[i].delimiter;
      while (!before.empty() && before.back() == ' ') before.pop_back();
      const auto ids =
          tokenizer.encode(items[i].query + items[i].delimiter + choice, {.add_bos = true});
      const size_t first = tokenizer.encode(before, {.add_bos = true}).size();
      const auto rows = testing::plain_logits(loaded_.model(), ids);
      double sum = 0;
      for (size_t t = first; t < ids.size(); ++t) sum -= testing::plain_nll(rows[t - 1], ids[t]);
      sums.push_back(sum);
      by_length.push_back(sum / static_cast<double>(choice.size()));
    }
    const ChoiceAnswer& answer = result.answers[i];
    ASSERT_EQ(answer.log_likelihoods.size(), sums.size());
    for (size_t c = 0; c < sums.size(); ++c) {
      EXPECT_NEAR(answer.log_likelihoods[c], sums[c], testing::kTiny) << items[i].id;
      EXPECT_LE(sums[c], sums[answer.by_sum] + testing::kTiny);
      EXPECT_LE(by_length[c], by_length[answer.by_length] + testing::kTiny);
    }
    right += answer.by_sum == items[i].gold ? 1 : 0;
    right_by_length += answer.by_length == items[i].gold ? 1 : 0;
  }
  EXPECT_EQ(result.answers[3].by_sum, 0u) << "of equals the first";
  EXPECT_DOUBLE_EQ(result.accuracy, right / 4);
  EXPECT_DOUBLE_EQ(result.normalised_accuracy, right_by_length / 4);
  EXPECT_DOUBLE_EQ(result.accuracy_error, std::sqrt(right / 4 * (1 - right / 4) / 3));
}

TEST_F(MultipleChoiceTest, BlanksBeforeAChoiceBelongToIt) {
  const Tokenizer& tokenizer = loaded_.tokenizer();
  const ChoiceItem item{.query = "the cat  ", .choices = {"sat", "x"}};
  const EncodedChoice encoded = encode_choice(tokenizer, item, 0, true);
  EXPECT_EQ(tokenizer.decode(std::span(encoded.tokens).first(encoded.first_scored), true),
            "the cat");
  EXPECT_EQ(encoded.tokens, tokenizer.encode("the cat   sat", {.add_bos = true}));
}

TEST_F(MultipleChoiceTest, NamesTheItemAtFault) {
  const std::vector<ChoiceItem> items = {
      {.id = "long", .query = std::string(400, 'z'), .choices = {"a", "b"}}};
  try {
    score(items, true);
    FAIL() << "a sequence that is too long was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("f.jsonl: item long"),
                                               ::testing::HasSubstr("room for 128")));
  }
}

TEST(StandardError, OfAShare) {
  EXPECT_DOUBLE_EQ(standard_error(0.5, 101), 0.05);
  EXPECT_EQ(standard_error(1, 10), 0);
  EXPECT_TRUE(std::isnan(standard_error(1, 1)));
}

}  // namespace
}  // namespace braid

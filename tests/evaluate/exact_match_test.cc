#include "evaluate/exact_match.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "evaluate/plain_likelihood.h"

namespace braid {
namespace {

using testing::model_path;

TEST(ExtractAnswer, WithAndWithoutAFilter) {
  EXPECT_EQ(extract_answer("  two words \n", ""), "two words");
  EXPECT_EQ(extract_answer(" \n ", ""), "");
  EXPECT_EQ(extract_answer("The answer is 42, not 43.", "[0-9]+"), "42");
  EXPECT_EQ(extract_answer("x #### 7\n", "(?<=#### )[0-9]+"), "7");
  EXPECT_EQ(extract_answer("nothing", "[0-9]+"), std::nullopt);
  EXPECT_THROW(extract_answer("", "("), Error);
}

class ExactMatchTest : public ::testing::Test {
 protected:
  GenerationScore score(std::span<const GenerationItem> items) {
    Engine engine(loaded_, {.threads = {.num_threads = 1},
                            .precision = ActivationPrecision::kF32,
                            .kv_dtype = DType::kF32,
                            .max_context = 64,
                            .max_sequences = 2});
    int64_t done = 0;
    GenerationScore result = score_generation(engine, loaded_, items, "f.jsonl", true,
                                              [&](int64_t count) { done = count; });
    EXPECT_EQ(done, std::ssize(items));
    return result;
  }

  LoadedModel loaded_ = LoadedModel::load(model_path("gguf/gemma4_moe_bf16.gguf").string());
};

TEST_F(ExactMatchTest, JudgesGreedyReplies) {
  // What the model says decides what is right.
  std::vector<GenerationItem> items = {
      {.id = "1", .prompt = "the cat", .answers = {"?"}, .max_new_tokens = 12},
      {.id = "2", .prompt = "one two three", .answers = {"?"}, .max_new_tokens = 7}};
  const GenerationScore first = score(items);
  EXPECT_EQ(first.exact_match, 0);
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].answers = {"?", "  " + first.answers[i].text + "\n"};
  }
  const GenerationScore second = score(items);
  EXPECT_EQ(second.exact_match, 1);
  items[1].answers = {second.answers[1].text + "!"};
  const GenerationScore third = score(items);
  EXPECT_DOUBLE_EQ(third.exact_match, 0.5);
  EXPECT_DOUBLE_EQ(third.exact_match_error, 0.5);
  EXPECT_TRUE(third.answers[0].correct);
  EXPECT_FALSE(third.answers[1].correct);

  // A stop string cuts the reply before it.
  const std::string& text = first.answers[0].text;
  ASSERT_GE(text.size(), 2u);
  items[0].stop = {text.substr(text.size() / 2)};
  const GenerationScore stopped = score(items);
  EXPECT_TRUE(text.starts_with(stopped.answers[0].text));
  EXPECT_LT(stopped.answers[0].text.size(), text.size());
}

TEST_F(ExactMatchTest, NamesTheItemAtFault) {
  const std::vector<GenerationItem> items = {
      {.id = "long", .prompt = std::string(600, 'z'), .answers = {"a"}}};
  try {
    score(items);
    FAIL() << "a prompt that is too long was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("f.jsonl: item long"));
  }
}

}  // namespace
}  // namespace braid

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "tokenizer_data.h"

namespace braid {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<TokenId>;

GgufVocabulary scored_vocabulary() {
  const nlohmann::json file = read_tokenizer_json("scored/vocabulary.json");
  GgufVocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.tokens = file["tokens"].get<std::vector<std::string>>();
  vocabulary.scores = file["scores"].get<std::vector<float>>();
  vocabulary.types = file["types"].get<std::vector<int32_t>>();
  vocabulary.bos = 2;
  vocabulary.eos = 1;
  vocabulary.unk = 3;
  vocabulary.add_space_prefix = false;
  return vocabulary;
}

GgufVocabulary gemma4_vocabulary() {
  GgufVocabulary vocabulary = gguf_from_json(read_tokenizer_json("gemma/tokenizer.json"));
  vocabulary.model = "gemma4";
  vocabulary.bos = 2;
  vocabulary.eos = 1;
  return vocabulary;
}

GgufVocabulary qwen_vocabulary() {
  GgufVocabulary vocabulary = gguf_from_json(read_tokenizer_json("qwen/tokenizer.json"));
  vocabulary.model = "gpt2";
  vocabulary.pre = "qwen2";
  return vocabulary;
}

std::string message_of(GgufVocabulary vocabulary) {
  try {
    make_tokenizer_from_gguf(std::move(vocabulary), "model.gguf");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(GgufTokenizer, ScoredMergesFollowTheDirectImplementation) {
  GgufVocabulary prefixing = scored_vocabulary();
  prefixing.add_space_prefix = true;
  const auto plain = make_tokenizer_from_gguf(scored_vocabulary(), "model.gguf");
  const auto prefixed = make_tokenizer_from_gguf(std::move(prefixing), "model.gguf");
  const nlohmann::json vectors = read_tokenizer_json("scored/vectors.json");
  ASSERT_GT(vectors.size(), 200u);
  for (const auto& vector : vectors) {
    const std::string text = vector["text"];
    const Ids ids = vector["ids"].get<Ids>();
    EXPECT_EQ(plain->encode(text), ids) << vector["text"];
    EXPECT_EQ(prefixed->encode(text), vector["prefixed"].get<Ids>()) << vector["text"];
    // The space mark itself is the one character that does not survive.
    if (text.find("\xE2\x96\x81") == std::string::npos) {
      EXPECT_EQ(plain->decode(ids), text);
    }
  }
}

TEST(GgufTokenizer, ScoredCharacterThatIsNoTokenStillMerges) {
  GgufVocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.tokens = {"<unk>", "a", "ab"};
  vocabulary.scores = {0, -1, -2};
  vocabulary.types = {2, 1, 1};
  vocabulary.unk = 0;
  vocabulary.add_space_prefix = false;
  const auto tokenizer = make_tokenizer_from_gguf(std::move(vocabulary), "model.gguf");
  EXPECT_THAT(tokenizer->encode("aab"), ElementsAre(1, 2));
  EXPECT_THAT(tokenizer->encode("b"), ElementsAre(0));
}

TEST(GgufTokenizer, ScoredPlainTextNeverYieldsControlTokens) {
  const auto tokenizer = make_tokenizer_from_gguf(scored_vocabulary(), "model.gguf");
  const Ids ids = tokenizer->encode("<bos>", {.special = SpecialTokens::kPlainText});
  EXPECT_GT(ids.size(), 1u);
  EXPECT_EQ(tokenizer->decode(ids, /*skip_special=*/true), "<bos>");
}

// The same vocabulary gives the same ids from either file.
TEST(GgufTokenizer, Gemma4MergesAgreeWithTokenizerJson) {
  const auto tokenizer = make_tokenizer_from_gguf(gemma4_vocabulary(), "model.gguf");
  for (const auto& vector : read_tokenizer_json("gemma/vectors.json")) {
    EXPECT_EQ(tokenizer->encode(vector["text"].get<std::string>()), vector["ids"].get<Ids>())
        << vector["text"];
  }
}

TEST(GgufTokenizer, Gemma4IgnoresScores) {
  GgufVocabulary vocabulary = gemma4_vocabulary();
  vocabulary.scores.assign(vocabulary.tokens.size(), std::numeric_limits<float>::quiet_NaN());
  const auto tokenizer = make_tokenizer_from_gguf(std::move(vocabulary), "model.gguf");
  EXPECT_EQ(tokenizer->encode("the harbour"), load_test_tokenizer("gemma")->encode("the harbour"));
}

TEST(GgufTokenizer, Gemma4TakesAKnownNewlineRunWhole) {
  GgufVocabulary vocabulary = gemma4_vocabulary();
  const auto id = static_cast<TokenId>(vocabulary.tokens.size());
  vocabulary.tokens.emplace_back(19, '\n');
  vocabulary.types.push_back(1);
  const auto tokenizer = make_tokenizer_from_gguf(std::move(vocabulary), "model.gguf");
  EXPECT_THAT(tokenizer->encode(std::string(19, '\n')), ElementsAre(id));
}

TEST(GgufTokenizer, ByteLevelMergesAgreeWithTokenizerJson) {
  const auto tokenizer = make_tokenizer_from_gguf(qwen_vocabulary(), "model.gguf");
  for (const auto& vector : read_tokenizer_json("qwen/vectors.json")) {
    const Ids ids = vector["ids"].get<Ids>();
    EXPECT_EQ(tokenizer->encode(vector["text"].get<std::string>()), ids) << vector["text"];
    EXPECT_EQ(tokenizer->decode(ids), vector.value("decoded", vector["text"].get<std::string>()));
  }
}

TEST(GgufTokenizer, EveryKnownPreLoadsAndRoundTrips) {
  for (const char* pre : {"qwen2", "qwen35", "llama-bpe", "gpt-2", "smollm", "default", ""}) {
    GgufVocabulary vocabulary = qwen_vocabulary();
    vocabulary.pre = pre;
    const auto tokenizer = make_tokenizer_from_gguf(std::move(vocabulary), "model.gguf");
    const std::string text = "It's 12345 words,  1998 — naïve   日本\n\n  x ";
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << pre;
  }
}

TEST(GgufTokenizer, DelimitersTypedAsUserTokensAreControlTokens) {
  GgufVocabulary vocabulary = gemma4_vocabulary();
  const std::vector<std::string> names = {"<|tool_call>", "<tool_call|>",     "<|tool_response>",
                                          "<|\"|>",       "<tool_response|>", "<|channel>",
                                          "<channel|>"};
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (std::count(names.begin(), names.end(), vocabulary.tokens[id])) vocabulary.types[id] = 4;
  }
  vocabulary.types[1] = 1;  // <eos> typed as an ordinary token
  const auto tokenizer = make_tokenizer_from_gguf(std::move(vocabulary), "model.gguf");
  for (const std::string& name : names) {
    const Ids ids = tokenizer->encode("a" + name + "b");
    ASSERT_EQ(ids.size(), 3u) << name;
    EXPECT_TRUE(tokenizer->is_special(ids[1])) << name;
    EXPECT_EQ(tokenizer->decode(ids, /*skip_special=*/true), "ab") << name;
    EXPECT_EQ(tokenizer->decode(ids), "a" + name + "b") << name;
    EXPECT_EQ(tokenizer->token_bytes(ids[1], /*render_special=*/true), name);
    EXPECT_EQ(tokenizer->token_bytes(ids[1], /*render_special=*/false), "");
  }
  EXPECT_TRUE(tokenizer->is_special(1));
}

TEST(GgufTokenizer, BosFollowsTheFileExceptForGemma) {
  GgufVocabulary gemma = gemma4_vocabulary();
  gemma.add_bos = false;
  EXPECT_TRUE(make_tokenizer_from_gguf(std::move(gemma), "model.gguf")->adds_bos());
  EXPECT_FALSE(make_tokenizer_from_gguf(qwen_vocabulary(), "model.gguf")->adds_bos());
}

TEST(GgufTokenizer, BadMetadataIsAnErrorThatNamesTheKey) {
  const auto with = [](GgufVocabulary vocabulary, auto change) {
    change(vocabulary);
    return message_of(std::move(vocabulary));
  };
  EXPECT_THAT(with(scored_vocabulary(), [](auto& v) { v.model = "bert"; }),
              HasSubstr("model.gguf: tokenizer.ggml.model: 'bert' is not supported (supported: "
                        "llama, gpt2, gemma4)"));
  EXPECT_THAT(with(qwen_vocabulary(), [](auto& v) { v.pre = "viking"; }),
              testing::AllOf(HasSubstr("tokenizer.ggml.pre: 'viking'"), HasSubstr("qwen2")));
  EXPECT_THAT(with(scored_vocabulary(), [](auto& v) { v.tokens.clear(); }),
              HasSubstr("tokenizer.ggml.tokens"));
  EXPECT_THAT(with(scored_vocabulary(), [](auto& v) { v.scores.pop_back(); }),
              HasSubstr("tokenizer.ggml.scores"));
  EXPECT_THAT(with(scored_vocabulary(), [](auto& v) { v.scores[400] = NAN; }),
              HasSubstr("tokenizer.ggml.scores: the score of token 400"));
  EXPECT_THAT(with(scored_vocabulary(), [](auto& v) { v.types.pop_back(); }),
              HasSubstr("tokenizer.ggml.token_type"));
  EXPECT_THAT(with(scored_vocabulary(), [](auto& v) { v.bos = 1 << 30; }),
              HasSubstr("tokenizer.ggml.bos_token_id"));
  EXPECT_THAT(with(scored_vocabulary(), [](auto& v) { v.eot = -5; }),
              HasSubstr("tokenizer.ggml.eot_token_id"));
  EXPECT_THAT(with(gemma4_vocabulary(), [](auto& v) { v.merges.clear(); }),
              HasSubstr("tokenizer.ggml.merges"));
  EXPECT_THAT(with(gemma4_vocabulary(), [](auto& v) { v.merges[3] = "lonely"; }),
              HasSubstr("tokenizer.ggml.merges: entry 3"));
  EXPECT_THAT(with(gemma4_vocabulary(), [](auto& v) { v.merges[3] = "a zzzzzz"; }),
              HasSubstr("'zzzzzz', which is not a token"));
}

}  // namespace
}  // namespace braid

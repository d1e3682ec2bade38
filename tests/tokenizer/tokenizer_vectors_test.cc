// Ids and decoded text against the Python package (see tests/data/tokenizer/README.md).
#include <gtest/gtest.h>

#include <algorithm>

#include "tokenizer/utf8.h"
#include "tokenizer_data.h"

namespace braid {
namespace {

using Ids = std::vector<TokenId>;

class TokenizerVectors : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Tokenizer> tokenizer_ = load_test_tokenizer(GetParam());
  nlohmann::json vectors_ = read_tokenizer_json(std::string(GetParam()) + "/vectors.json");
};

TEST_P(TokenizerVectors, EncodesToTheSameIds) {
  ASSERT_GT(vectors_.size(), 200u);
  for (const auto& vector : vectors_) {
    const std::string text = vector["text"];
    EXPECT_EQ(tokenizer_->encode(text), vector["ids"].get<Ids>()) << vector["text"];
    const Ids plain = vector.value("plain", vector["ids"]).get<Ids>();
    EXPECT_EQ(tokenizer_->encode(text, {.special = SpecialTokens::kPlainText}), plain)
        << vector["text"];
  }
}

TEST_P(TokenizerVectors, DecodesToTheSameText) {
  for (const auto& vector : vectors_) {
    const Ids ids = vector["ids"];
    if (vector.contains("decoded") && vector["decoded"].is_null()) continue;
    const std::string decoded = vector.value("decoded", vector["text"]);
    EXPECT_EQ(tokenizer_->decode(ids), decoded) << vector["text"];
    EXPECT_EQ(tokenizer_->decode(ids, /*skip_special=*/true), vector.value("skipped", decoded))
        << vector["text"];
  }
}

TEST_P(TokenizerVectors, StreamedPiecesAreValidAndJoinToTheWhole) {
  for (const auto& vector : vectors_) {
    const Ids ids = vector["ids"];
    for (const bool skip_special : {false, true}) {
      StreamDecoder decoder(*tokenizer_, skip_special);
      std::string joined;
      for (const TokenId id : ids) {
        const std::string piece = decoder.push(id);
        EXPECT_TRUE(utf8_is_valid(piece)) << vector["text"];
        joined += piece;
      }
      joined += decoder.flush();
      EXPECT_EQ(joined, tokenizer_->decode(ids, skip_special)) << vector["text"];
    }
  }
}

// The first token apart, the bytes of the tokens are the decoded text.
TEST_P(TokenizerVectors, TokenBytesMakeUpTheText) {
  for (const auto& vector : vectors_) {
    const Ids ids = vector["ids"];
    if (ids.empty()) continue;
    const TokenId letter = *tokenizer_->token_id("a");
    std::string bytes;
    for (const TokenId id : ids) bytes += tokenizer_->token_bytes(id, /*render_special=*/true);
    Ids after_letter = {letter};
    after_letter.insert(after_letter.end(), ids.begin(), ids.end());
    EXPECT_EQ("a" + utf8_repair(bytes), tokenizer_->decode(after_letter)) << vector["text"];
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, TokenizerVectors,
                         testing::Values("gemma", "qwen", "llama", "metaspace"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TokenizerRandomIds, DecodeLikeThePythonPackage) {
  const auto tokenizer = load_test_tokenizer("qwen");
  for (const auto& vector : read_tokenizer_json("qwen/id_vectors.json")) {
    EXPECT_EQ(tokenizer->decode(vector["ids"].get<Ids>()), vector["decoded"].get<std::string>())
        << vector["ids"];
  }
}

}  // namespace
}  // namespace braid

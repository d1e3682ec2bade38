// Reading of tokenizer.json and tokenizer_config.json: special ids, BOS, and refusal of bad files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "tokenizer_data.h"

namespace braid {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// a, b, ab, <bos>, <eos> with one merge.
json small_file() {
  return json::parse(R"({
    "added_tokens": [
      {"id": 3, "content": "<bos>", "special": true, "normalized": false},
      {"id": 4, "content": "<eos>", "special": true, "normalized": false}],
    "normalizer": null, "pre_tokenizer": null, "decoder": {"type": "Fuse"}, "post_processor": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}})");
}

std::unique_ptr<Tokenizer> load(const json& file, const json& config = nullptr) {
  return make_tokenizer_from_json(file.dump(), config.is_null() ? "" : config.dump(),
                                  "model/tokenizer.json");
}

std::string message_of(const std::string& text, const std::string& config = "") {
  try {
    make_tokenizer_from_json(text, config, "model/tokenizer.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string message_with(const std::function<void(json&)>& change) {
  json file = small_file();
  change(file);
  return message_of(file.dump());
}

TEST(TokenizerJson, MergesMayBeStringsOrPairs) {
  json strings = small_file();
  strings["model"]["merges"] = {"a b"};
  EXPECT_THAT(load(small_file())->encode("aba"), ElementsAre(2, 0));
  EXPECT_THAT(load(strings)->encode("aba"), ElementsAre(2, 0));
}

TEST(TokenizerJson, AloneItFindsTheUsualSpecialTokens) {
  const auto tokenizer = load(small_file());
  EXPECT_EQ(tokenizer->bos_id(), 3);
  EXPECT_EQ(tokenizer->eos_id(), 4);
  EXPECT_EQ(tokenizer->pad_id(), std::nullopt);
  EXPECT_EQ(tokenizer->vocab_size(), 5);
  EXPECT_EQ(tokenizer->token_id("ab"), 2);
  EXPECT_EQ(tokenizer->token_text(2), "ab");
  EXPECT_EQ(tokenizer->token_text(77), "");
  EXPECT_EQ(tokenizer->token_text(-1), "");
  EXPECT_TRUE(tokenizer->is_special(3));
  EXPECT_FALSE(tokenizer->is_special(0));
  EXPECT_FALSE(tokenizer->is_special(-1));
}

TEST(TokenizerJson, OneBosWhetherOrNotTheTextHasIt) {
  const auto tokenizer = load(small_file());
  EXPECT_THAT(tokenizer->encode("ab"), ElementsAre(2));
  EXPECT_THAT(tokenizer->encode("ab", {.add_bos = true}), ElementsAre(3, 2));
  EXPECT_THAT(tokenizer->encode("<bos>ab", {.add_bos = true}), ElementsAre(3, 2));
  EXPECT_THAT(tokenizer->encode("<bos>ab"), ElementsAre(3, 2));
  EXPECT_THAT(tokenizer->encode("", {.add_bos = true}), ElementsAre(3));
}

TEST(TokenizerJson, GemmaVocabulariesAskForBosWhateverTheConfigurationSays) {
  EXPECT_TRUE(load(small_file(), {{"bos_token", "<bos>"}, {"add_bos_token", false}})->adds_bos());
  json other = small_file();
  other["added_tokens"][0]["content"] = "<s>";
  EXPECT_FALSE(load(other, {{"bos_token", "<s>"}, {"add_bos_token", false}})->adds_bos());
  EXPECT_FALSE(load(other, {{"bos_token", "<s>"}})->adds_bos());
  EXPECT_TRUE(load(other, {{"bos_token", "<s>"}, {"add_bos_token", true}})->adds_bos());
}

TEST(TokenizerJson, TemplateThatBeginsWithATokenAsksForBos) {
  json file = small_file();
  file["added_tokens"][0]["content"] = "<s>";
  file["post_processor"] = json::parse(R"({"type": "Sequence", "processors": [
    {"type": "ByteLevel"},
    {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                              {"Sequence": {"id": "A", "type_id": 0}}]}]})");
  EXPECT_TRUE(load(file)->adds_bos());
  EXPECT_EQ(load(file)->bos_id(), 3);
}

TEST(TokenizerJson, ExtraSpecialTokensMayBeAListOrAnObject) {
  for (const json& extra : {json{"ab", "<eos>"}, json{{"one", "ab"}, {"two", "<eos>"}},
                            json{{{"content", "ab"}}, {{"content", "absent"}}}}) {
    const auto tokenizer = load(small_file(), {{"extra_special_tokens", extra}});
    EXPECT_TRUE(tokenizer->is_special(2)) << extra;
    EXPECT_EQ(tokenizer->decode(tokenizer->encode("aab"), /*skip_special=*/true), "a") << extra;
  }
}

TEST(TokenizerJson, TokensOfTheConfigurationMayBeStringsObjectsOrNull) {
  const auto tokenizer = load(small_file(), {{"bos_token", {{"content", "<bos>"}}},
                                             {"eos_token", "<eos>"},
                                             {"pad_token", nullptr},
                                             {"unk_token", "nowhere"}});
  EXPECT_EQ(tokenizer->bos_id(), 3);
  EXPECT_EQ(tokenizer->eos_id(), 4);
  EXPECT_EQ(tokenizer->pad_id(), std::nullopt);
  EXPECT_EQ(tokenizer->unk_id(), std::nullopt);
}

TEST(TokenizerJson, IllFormedTextIsReadAsReplacementCharacters) {
  json file = small_file();
  file["model"]["vocab"]["\xEF\xBF\xBD"] = 5;
  const auto tokenizer = load(file);
  EXPECT_THAT(tokenizer->encode("a\xFFz\xE2\x82"), ElementsAre(0, 5, 5));
}

TEST(TokenizerJson, GapsInTheIdsAreNoTokens) {
  json file = small_file();
  file["added_tokens"][1]["id"] = 40;
  const auto tokenizer = load(file);
  EXPECT_EQ(tokenizer->vocab_size(), 41);
  EXPECT_EQ(tokenizer->token_text(20), "");
  const std::vector<TokenId> ids = {0, 20, 1, 99, -7};
  EXPECT_EQ(tokenizer->decode(ids), "ab");
}

TEST(TokenizerJson, BadFilesAreErrorsThatNameFileAndField) {
  EXPECT_THAT(message_of(""), HasSubstr("model/tokenizer.json: not valid JSON"));
  EXPECT_THAT(message_of("{\"model\": "), HasSubstr("model/tokenizer.json: not valid JSON"));
  EXPECT_THAT(message_of("[]"), HasSubstr("model/tokenizer.json: top level: must be an object"));
  EXPECT_THAT(message_of("{}"), HasSubstr("field 'model' is missing"));
  EXPECT_THAT(message_of(small_file().dump(), "{"),
              HasSubstr("model/tokenizer_config.json: not valid JSON"));
  EXPECT_THAT(message_of(small_file().dump(), R"({"bos_token": 7})"),
              HasSubstr("model/tokenizer_config.json: bos_token: must be a string"));

  EXPECT_THAT(message_with([](json& f) { f["model"]["type"] = "Unigram"; }),
              HasSubstr("model/tokenizer.json: model.type: model type 'Unigram' is not supported"));
  EXPECT_THAT(message_with([](json& f) { f["model"].erase("vocab"); }),
              HasSubstr("model: field 'vocab' is missing"));
  EXPECT_THAT(message_with([](json& f) { f["model"]["vocab"]["a"] = "x"; }),
              HasSubstr("the id of token 'a' is not a whole number"));
  EXPECT_THAT(message_with([](json& f) { f["model"]["vocab"]["a"] = -1; }),
              HasSubstr("the id -1 of token 'a' is out of range"));
  EXPECT_THAT(message_with([](json& f) { f["model"]["vocab"]["a"] = 4000000000; }),
              HasSubstr("the id 4000000000 of token 'a' is out of range"));
  EXPECT_THAT(message_with([](json& f) { f["model"]["vocab"]["a"] = 1; }),
              HasSubstr("model.vocab: id 1 is given to"));
  EXPECT_THAT(message_with([](json& f) { f["model"]["merges"][0] = "ab"; }),
              HasSubstr("model.merges[0]: must be two tokens"));
  EXPECT_THAT(message_with([](json& f) {
                f["model"]["merges"][0] = {"a", "z"};
              }),
              HasSubstr("model.merges[0]: token 'z' is not in model.vocab"));
  EXPECT_THAT(message_with([](json& f) {
                f["model"]["merges"][0] = {"b", "a"};
              }),
              HasSubstr("model.merges[0]: token 'ba' is not in model.vocab"));
  EXPECT_THAT(message_with([](json& f) { f["model"]["unk_token"] = "<unk>"; }),
              HasSubstr("model.unk_token: token '<unk>' is not in model.vocab"));
  EXPECT_THAT(message_with([](json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }),
              HasSubstr("model.end_of_word_suffix"));
  EXPECT_THAT(message_with([](json& f) { f["added_tokens"][1]["id"] = 3; }),
              HasSubstr("added_tokens[1].id: id 3 belongs to token '<bos>'"));
  EXPECT_THAT(message_with([](json& f) { f["added_tokens"][1]["lstrip"] = 1; }),
              HasSubstr("added_tokens[1].lstrip: must be true or false"));
}

TEST(TokenizerJson, UnknownStepsAreErrorsThatNameThem) {
  const json precompiled = {{"type", "Precompiled"}};
  EXPECT_THAT(
      message_with([&](json& f) { f["normalizer"] = precompiled; }),
      AllOf(HasSubstr("normalizer.type: type 'Precompiled' is not supported"), HasSubstr("NFC")));
  EXPECT_THAT(message_with([&](json& f) {
                f["normalizer"] = {{"type", "Sequence"}, {"normalizers", {precompiled}}};
              }),
              HasSubstr("normalizer.normalizers[0].type: type 'Precompiled'"));
  EXPECT_THAT(message_with([](json& f) {
                f["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
              }),
              HasSubstr("pre_tokenizer.type: type 'BertPreTokenizer'"));
  EXPECT_THAT(message_with([](json& f) {
                f["decoder"] = {{"type", "CTC"}};
              }),
              HasSubstr("decoder.type: type 'CTC'"));
  const auto with_pattern = [](const std::string& pattern) {
    return message_with([&](json& f) {
      f["pre_tokenizer"] = {{"type", "Split"},
                            {"pattern", {{"Regex", pattern}}},
                            {"behavior", "Isolated"},
                            {"invert", false}};
    });
  };
  EXPECT_THAT(with_pattern("(a"), HasSubstr("pre_tokenizer.pattern.Regex: "));
  EXPECT_THAT(with_pattern("[a[bc]]"), HasSubstr("pre_tokenizer.pattern.Regex: "));
  EXPECT_THAT(with_pattern("[a-z&&b]"), HasSubstr("pre_tokenizer.pattern.Regex: "));
}

TEST(TokenizerJson, PatternThatNeverEndsIsAnErrorOnTheText) {
  json file = small_file();
  file["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"Regex", "(a|aa)+d"}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  const auto tokenizer = load(file);
  EXPECT_THROW(tokenizer->encode(std::string(200, 'a') + "cd"), Error);
}

}  // namespace
}  // namespace braid

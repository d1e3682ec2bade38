// Ids of the released Gemma vocabulary. BRAID_GEMMA_TOKENIZER names a tokenizer.json, or the JSON
// that tools/goldens/dump_gguf_vocabulary.py makes of a GGUF file.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tokenizer_data.h"

namespace braid {
namespace {

using Ids = std::vector<TokenId>;

std::unique_ptr<Tokenizer> load(const std::string& path) {
  const std::string text = read_text_file(path);
  const nlohmann::json file = nlohmann::json::parse(text);
  if (!file.contains("tokens")) return make_tokenizer_from_json(text, "", path);
  GgufVocabulary vocabulary;
  const auto id = [&](const char* key) -> std::optional<TokenId> {
    return file.contains(key) ? std::optional<TokenId>(file[key].get<TokenId>()) : std::nullopt;
  };
  const auto flag = [&](const char* key) -> std::optional<bool> {
    return file.contains(key) ? std::optional<bool>(file[key].get<bool>()) : std::nullopt;
  };
  vocabulary.model = file["model"];
  vocabulary.pre = file.value("pre", "");
  vocabulary.tokens = file["tokens"].get<std::vector<std::string>>();
  vocabulary.scores = file.value("scores", std::vector<float>());
  vocabulary.types = file.value("token_type", std::vector<int32_t>());
  vocabulary.merges = file.value("merges", std::vector<std::string>());
  vocabulary.bos = id("bos_token_id");
  vocabulary.eos = id("eos_token_id");
  vocabulary.eot = id("eot_token_id");
  vocabulary.unk = id("unknown_token_id");
  vocabulary.pad = id("padding_token_id");
  vocabulary.add_bos = flag("add_bos_token");
  vocabulary.add_space_prefix = flag("add_space_prefix");
  return make_tokenizer_from_gguf(std::move(vocabulary), path);
}

TEST(GemmaVocabulary, PublishedVectors) {
  const char* path = std::getenv("BRAID_GEMMA_TOKENIZER");
  if (!path) GTEST_SKIP() << "set BRAID_GEMMA_TOKENIZER to the file of a released vocabulary";
  const auto tokenizer = load(path);
  EXPECT_GE(tokenizer->vocab_size(), 262144);
  EXPECT_EQ(tokenizer->bos_id(), 2);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_TRUE(tokenizer->adds_bos());
  const std::vector<std::pair<std::string, Ids>> vectors = {
      {"Hello world", {9259, 1902}},
      {" Hello world", {26352, 1902}},
      {"Hello, world!", {9259, 236764, 1902, 236888}},
      {"ied 4 ½ months", {1178, 236743, 236812, 47041, 3794}},
      {"Äpfel", {239122, 22744, 535}},
      {"\t\n", {255968, 107}},
      {"33", {236800, 236800}},
      {"   Hello", {139, 9259}},
      {"Cửa Việt", {236780, 29719, 33154}},
      {" discards", {2243, 2206}},
      {"\n\n\n", {109}},
      {"<bos>", {2}},
  };
  for (const auto& [text, ids] : vectors) {
    EXPECT_EQ(tokenizer->encode(text), ids) << text;
    EXPECT_EQ(tokenizer->decode(ids), text);
  }
}

}  // namespace
}  // namespace braid

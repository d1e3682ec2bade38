#include "checkpoint/generation_defaults.h"

#include <gtest/gtest.h>

#include "checkpoint/expect_error.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;

GenerationDefaults read(std::string_view config, std::string_view generation = "") {
  const ConfigReader config_reader(config, "config.json");
  if (generation.empty()) return read_generation_defaults(config_reader, std::nullopt);
  return read_generation_defaults(config_reader,
                                  ConfigReader(generation, "generation_config.json"));
}

// robustness B05
TEST(GenerationDefaults, B05bStopIdsMayBeAList) {
  EXPECT_THAT(read(R"({"eos_token_id": [1, 106, 50]})").stop_ids, ElementsAre(1, 50, 106));
}

TEST(GenerationDefaults, B05cStopIdsAreTheUnionOfAllFiles) {
  const GenerationDefaults defaults =
      read(R"({"eos_token_id": 1, "text_config": {"eos_token_id": [1, 50], "bos_token_id": 9}})",
           R"({"eos_token_id": [1, 106], "bos_token_id": 2})");
  EXPECT_THAT(defaults.stop_ids, ElementsAre(1, 50, 106));
  EXPECT_EQ(defaults.bos_id, 2);
}

TEST(GenerationDefaults, ReadsSampling) {
  const GenerationDefaults defaults = read("{}", R"({"temperature": 1.0, "top_k": 64, "top_p": 0.95,
      "min_p": 0.05, "repetition_penalty": 1.1, "do_sample": true, "suppress_tokens": [9, 7]})");
  EXPECT_EQ(defaults.temperature, 1.0f);
  EXPECT_EQ(defaults.top_k, 64);
  EXPECT_EQ(defaults.top_p, 0.95f);
  EXPECT_EQ(defaults.min_p, 0.05f);
  EXPECT_EQ(defaults.repetition_penalty, 1.1f);
  EXPECT_EQ(defaults.do_sample, true);
  EXPECT_THAT(defaults.suppress_ids, ElementsAre(7, 9));
  EXPECT_EQ(read("{}").temperature, std::nullopt);
  EXPECT_EQ(read("{}", R"({"top_k": -1})").top_k, 0);
}

TEST(GenerationDefaults, ReadsGguf) {
  GgufMetadata metadata;
  metadata.origin = "m.gguf";
  metadata.values = {
      {"tokenizer.ggml.eos_token_id", int64_t{106}},
      {"tokenizer.ggml.eot_token_id", int64_t{1}},
      {"tokenizer.ggml.eom_token_id", int64_t{106}},
      {"tokenizer.ggml.bos_token_id", int64_t{2}},
      {"tokenizer.ggml.suppress_tokens", GgufMetadata::Array(std::vector<int64_t>{258882, 258883})},
      {"general.sampling.temp", 0.7},
      {"general.sampling.top_k", int64_t{64}}};
  const GenerationDefaults defaults = read_generation_defaults(metadata);
  EXPECT_THAT(defaults.stop_ids, ElementsAre(1, 106));
  EXPECT_THAT(defaults.suppress_ids, ElementsAre(258882, 258883));
  EXPECT_EQ(defaults.bos_id, 2);
  EXPECT_EQ(defaults.temperature, 0.7f);
  EXPECT_EQ(defaults.top_k, 64);
}

TEST(GenerationDefaults, RefusesNonsense) {
  expect_error([] { read(R"({"eos_token_id": "x"})"); }, {"config.json: eos_token_id"});
  expect_error([] { read(R"({"eos_token_id": -1})"); }, {"eos_token_id", "-1 is no token id"});
  expect_error([] { read(R"({"eos_token_id": 4294967297})"); }, {"4294967297"});
  expect_error([] { read("{}", R"({"top_p": 1.5})"); },
               {"generation_config.json: top_p: 1.5", "0 to 1"});
  expect_error([] { read("{}", R"({"temperature": -1})"); }, {"temperature"});
  expect_error([] { read("{}", R"({"temperature": 1e300})"); }, {"temperature"});
  expect_error([] { read("{}", R"({"repetition_penalty": 0})"); }, {"repetition_penalty"});
  expect_error([] { read("{}", R"({"top_k": -5})"); }, {"top_k", "-5"});
}

}  // namespace
}  // namespace braid

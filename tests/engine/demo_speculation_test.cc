#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>
#include <map>

#include "base/error.h"
#include "base/mapped_file.h"
#include "engine/drafter_choice.h"
#include "engine/engine.h"
#include "engine/tiny_model.h"
#include "support/fresh_seed.h"
#include "support/temp_folder.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

using testing::Reply;
namespace fs = std::filesystem;

std::string demo(const char* name) { return std::string(BRAID_DEMO_MODEL_FOLDER) + "/" + name; }

struct Case {
  const char* name;
  const char* target;
  std::string drafter;
  bool cuda = false;
};

// Thousands of tokens of really trained models with real drafters: the same with and without,
// greedy and sampled, across the windows (128), in the default precision.
class DemoSpeculationTest : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int64_t kTokens = 300;  // of each request

  void SetUp() override {
    const Device device = GetParam().cuda ? Device{DeviceKind::kCuda, 0} : Device{};
    if (GetParam().cuda && cuda::num_devices() == 0) GTEST_SKIP() << "no CUDA device here";
    loaded_.emplace(LoadedModel::load(demo(GetParam().target), {.device = device}));
    testing::FreshRandom random;
    const char* prompts[] = {"It was a cold morning, and the", "The old house stood", "Chapter one",
                             "\"Where have you been?\" she asked. \"I"};
    for (const char* prompt : prompts) {
      for (const float temperature : {0.0f, 0.8f}) {
        GenerationRequest request;
        request.prompt =
            loaded_->tokenizer().encode(prompt, {.add_bos = loaded_->tokenizer().adds_bos()});
        request.sampling.temperature = temperature;
        request.sampling.seed = static_cast<uint64_t>(random.integer(0, 1 << 30));
        if (random.coin(0.3)) request.sampling.repetition_penalty = 1.1f;
        if (random.coin(0.3)) request.sampling.top_k = 40;
        if (random.coin(0.3)) request.sampling.top_p = 0.9f;
        request.max_new_tokens = kTokens + random.integer(0, 8);
        requests_.push_back(request);
      }
    }
    replies_ = run(options());
  }

  // On a device, sequences are the same in any company in deterministic mode only.
  static EngineOptions options() {
    EngineOptions options{.threads = {.num_threads = 1}, .max_context = 1024, .max_sequences = 3};
    if (GetParam().cuda) {
      options.precision = ActivationPrecision::kBF16;
      options.deterministic = true;
    }
    return options;
  }

  std::vector<Reply> run(const EngineOptions& options, SpeculationStats* stats = nullptr) {
    Engine engine(*loaded_, options);
    std::map<RequestId, size_t> index_of;
    std::vector<Reply> replies(requests_.size());
    for (size_t i = 0; i < requests_.size(); ++i) index_of[engine.submit(requests_[i])] = i;
    while (!engine.idle()) {
      for (const TokenEvent& event : engine.step()) {
        testing::take(event, replies[index_of.at(event.request)]);
      }
    }
    if (stats != nullptr) *stats = *engine.speculation_stats();
    return replies;
  }

  std::optional<LoadedModel> loaded_;
  std::vector<GenerationRequest> requests_;
  std::vector<Reply> replies_;
};

TEST_P(DemoSpeculationTest, TheTextIsTheSame) {
  testing::FreshRandom random;
  for (const bool adaptive : {false, true}) {
    EngineOptions options = DemoSpeculationTest::options();
    // Four with a few rows each: on a device their tables keep their size when texts outgrow their
    // room for pages.
    options.max_sequences = adaptive ? 1 : 4;
    options.speculation = {.drafter = load_drafter(parse_drafter(GetParam().drafter), *loaded_),
                           .max_drafts = random.integer(2, 5),
                           .adaptive = adaptive};
    SpeculationStats stats;
    const std::vector<Reply> replies = run(options, &stats);
    for (size_t i = 0; i < replies.size(); ++i) {
      ASSERT_EQ(replies[i].tokens, replies_[i].tokens) << "request " << i;
      ASSERT_EQ(replies[i], replies_[i]) << "request " << i;
    }
    // How often an adaptive one drafts at all is up to the clock.
    if (!adaptive) {
      EXPECT_GT(stats.num_accepted(), 0);
      std::cout << GetParam().name << ": " << stats.num_accepted() << " of " << stats.num_drafted()
                << " drafts accepted\n";
    }
  }
}

// Without that mode texts may part where two tokens are nearly as likely; each request still gets
// its tokens.
TEST_P(DemoSpeculationTest, OrdinaryModeOfADeviceBringsAllTokens) {
  if (!GetParam().cuda) GTEST_SKIP() << "of devices only";
  EngineOptions options = DemoSpeculationTest::options();
  options.deterministic = false;
  const std::vector<Reply> plain = run(options);
  options.speculation = {.drafter = load_drafter(parse_drafter(GetParam().drafter), *loaded_),
                         .max_drafts = 3,
                         .adaptive = false};
  SpeculationStats stats;
  const std::vector<Reply> replies = run(options, &stats);
  int same = 0;
  for (size_t i = 0; i < replies.size(); ++i) {
    EXPECT_EQ(replies[i].error, "");
    if (replies[i].finish == FinishReason::kLength) {
      EXPECT_EQ(std::ssize(replies[i].tokens), requests_[i].max_new_tokens);
    } else {
      EXPECT_EQ(replies[i].finish, FinishReason::kStop);
    }
    same += replies[i].tokens == plain[i].tokens;
  }
  EXPECT_GT(stats.num_accepted(), 0);
  std::cout << GetParam().name << ": " << stats.num_accepted() << " of " << stats.num_drafted()
            << " drafts accepted; " << same << " of " << replies.size() << " texts the same\n";
}

INSTANTIATE_TEST_SUITE_P(
    All, DemoSpeculationTest,
    ::testing::Values(
        Case{"ngram", "gemma4", "ngram"}, Case{"model", "gemma4", "model:" + demo("gemma4-dense")},
        Case{"assistant", "gemma4", "assistant:" + demo("gemma4-assistant")},
        Case{"mtp", "qwen3next", "mtp"}, Case{"ngram_recurrent", "qwen3next", "ngram"},
        Case{"cuda_ngram", "gemma4", "ngram", true},
        Case{"cuda_model", "gemma4", "model:" + demo("gemma4-dense"), true},
        Case{"cuda_assistant", "gemma4", "assistant:" + demo("gemma4-assistant"), true},
        Case{"cuda_mtp", "qwen3next", "mtp", true},
        Case{"cuda_ngram_recurrent", "qwen3next", "ngram", true}),
    [](const auto& info) { return std::string(info.param.name); });

// Of targets that are only described.
TEST(DrafterChoiceTest, WhatDoesNotGoTogetherIsSaidBeforeAnythingIsRead) {
  const auto error_of = [](const char* target, const std::string& drafter) -> std::string {
    const LoadedModel described = LoadedModel::load(demo(target), {.read_ahead = false});
    try {
      check_drafter(parse_drafter(drafter), described);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(error_of("gemma4", "mtp").find("no multi-token-prediction head"), std::string::npos);
  EXPECT_NE(error_of("gemma4", "model:" + demo("qwen3next")).find("vocabulary"), std::string::npos);
  EXPECT_NE(error_of("gemma4", "assistant:" + demo("gemma4-dense")), "");
  EXPECT_NE(error_of("qwen3next", "assistant:" + demo("gemma4-assistant")), "");
  EXPECT_NE(error_of("gemma4", "model:" + demo("gemma4-assistant")), "");
  EXPECT_NE(error_of("gemma4", "model:nowhere").find("nowhere"), std::string::npos);
  EXPECT_EQ(error_of("gemma4", "off"), "");
  EXPECT_EQ(error_of("gemma4", "model:" + demo("gemma4-dense")), "");
  EXPECT_EQ(error_of("gemma4", "assistant:" + demo("gemma4-assistant")), "");

  const testing::TempFolder other;
  for (const auto& file : fs::directory_iterator(demo("gemma4-dense"))) {
    fs::create_symlink(file.path(), other.path() / file.path().filename());
  }
  std::string tokenizer = read_file(demo("gemma4-dense") + "/tokenizer.json");
  const std::string_view token = "<|tool_response>";
  for (size_t at = 0; (at = tokenizer.find(token, at)) != tokenizer.npos; ++at) {
    tokenizer.replace(at, token.size(), "<|tool_reaction>");
  }
  fs::remove(other.path() / "tokenizer.json");
  other.write("tokenizer.json", tokenizer);
  EXPECT_THAT(error_of("gemma4", "model:" + other.path().string()),
              ::testing::AllOf(::testing::HasSubstr("another tokenizer"),
                               ::testing::HasSubstr("'<|tool_reaction>' in one and")));
  for (const char* text : {"", "on", "mtp:x", "model", "model:", "assistant:", "NGRAM"}) {
    try {
      parse_drafter(text);
      ADD_FAILURE() << text;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("assistant:PATH"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace braid

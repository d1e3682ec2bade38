#include <gtest/gtest.h>

#include <map>

#include "engine/engine.h"
#include "engine/random_requests.h"
#include "support/fresh_seed.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

using testing::FreshRandom;
using testing::greedy_request;
using testing::random_prompt;
using testing::random_request;
using testing::Reply;
using testing::run_alone;

// Steps that are launched before the tokens of the step in front are known bring what the simple
// loop brings: on the CPU, where it is of no use, and on the first CUDA device, for models with
// windows and with recurrent layers.
struct Case {
  const char* name;
  const char* model;
  bool cuda, recurrent;
};

class RunAheadTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().cuda && cuda::num_devices() == 0) GTEST_SKIP() << "no CUDA device here";
    const Device device = GetParam().cuda ? Device{DeviceKind::kCuda, 0} : Device{};
    model_.emplace(
        LoadedModel::load(testing::model_path(GetParam().model).string(), {.device = device}));
  }

  EngineOptions options(bool ahead) const {
    EngineOptions options = testing::exact_options();
    options.deterministic = GetParam().cuda;
    options.run_ahead = ahead ? EngineOptions::RunAhead::kAlways : EngineOptions::RunAhead::kNever;
    return options;
  }

  // With ids that the model has.
  GenerationRequest fitted(GenerationRequest request) const {
    for (int32_t& id : request.prompt) id %= static_cast<int32_t>(model_->model().vocab_size());
    return request;
  }

  std::optional<LoadedModel> model_;
};

TEST_P(RunAheadTest, ChangesNoReply) {
  FreshRandom random;
  int64_t steps_ahead = 0;
  for (int round = 0; round < 6; ++round) {
    EngineOptions plain_options = options(false), ahead_options = options(true);
    // Steps ahead are certain if a request that allows them has no company.
    plain_options.max_sequences = ahead_options.max_sequences =
        round == 0 ? 1 : random.integer(1, 5);
    if (random.coin(0.3)) plain_options.batch_tokens = ahead_options.batch_tokens = 9;
    Engine plain(*model_, plain_options), ahead(*model_, ahead_options);
    std::vector<GenerationRequest> requests;
    std::vector<Reply> expected;
    for (int i = 0; i < 8; ++i) {
      GenerationRequest request = fitted(random_request(random, 40));
      const bool plainest = round == 0 && i == 0;
      if (plainest) request.max_new_tokens = 40;
      if (plainest || random.coin(0.5)) request.sampling.repetition_penalty = 1;
      if (random.coin(0.2)) request.sampling.suppress_ids = {5, 9};
      Reply reply = run_alone(plain, request);
      if (plainest) {
      } else if (random.coin(0.3)) {
        request.stop.ids = {random.pick(reply.tokens)};
        reply = run_alone(plain, request);
      } else if (random.coin(0.3) && reply.text.size() > 4) {
        request.stop.strings = {reply.text.substr(reply.text.size() / 2, 2)};
        reply = run_alone(plain, request);
      }
      requests.push_back(request);
      expected.push_back(reply);
    }
    std::map<RequestId, size_t> index_of;
    std::vector<Reply> got(requests.size());
    size_t next = 0;
    while (next < requests.size() || !ahead.idle()) {
      while (next < requests.size() && random.coin(0.3)) {
        index_of[ahead.submit(requests[next])] = next;
        ++next;
      }
      for (const TokenEvent& event : ahead.step()) {
        Reply& reply = got[index_of.at(event.request)];
        EXPECT_FALSE(reply.finish) << "an event after the last";
        testing::take(event, reply);
      }
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(got[i].tokens, expected[i].tokens) << "request " << i;
      EXPECT_EQ(got[i], expected[i]) << "request " << i;
    }
    testing::expect_all_pages_free(ahead);
    if (HasFailure()) return;
    EXPECT_EQ(plain.stats().steps_ahead, 0);
    steps_ahead += ahead.stats().steps_ahead;
  }
  EXPECT_GT(steps_ahead, 0);
}

TEST_P(RunAheadTest, LogprobsComeWithTheTokens) {
  FreshRandom random;
  GenerationRequest request = fitted(greedy_request(random_prompt(random, 12), 20));
  request.sampling.temperature = 0.8f;
  request.sampling.seed = 3;
  request.sampling.num_logprobs = 3;
  std::vector<SampledToken> tokens[2];
  for (const bool ahead : {false, true}) {
    Engine engine(*model_, options(ahead));
    engine.submit(request);
    while (!engine.idle()) {
      for (const TokenEvent& event : engine.step()) tokens[ahead].push_back(*event.token);
    }
  }
  ASSERT_EQ(tokens[1].size(), tokens[0].size());
  for (size_t i = 0; i < tokens[0].size(); ++i) {
    EXPECT_EQ(tokens[1][i].token, tokens[0][i].token);
    EXPECT_EQ(tokens[1][i].logprob, tokens[0][i].logprob);
    ASSERT_EQ(tokens[1][i].top_logprobs.size(), 3u);
    EXPECT_EQ(tokens[1][i].top_logprobs[2].token, tokens[0][i].top_logprobs[2].token);
  }
}

// Whatever is cancelled while a step is on its way.
TEST_P(RunAheadTest, CancellingLeavesTheOthersAlone) {
  FreshRandom random;
  Engine plain(*model_, options(false));
  for (int round = 0; round < 5; ++round) {
    EngineOptions ahead_options = options(true);
    ahead_options.max_sequences = 3;
    Engine engine(*model_, ahead_options);
    std::map<RequestId, GenerationRequest> requests;
    std::map<RequestId, Reply> got;
    for (int i = 0; i < 5; ++i) {
      const GenerationRequest request = fitted(random_request(random, 30));
      requests[engine.submit(request)] = request;
    }
    while (!engine.idle()) {
      if (random.coin(0.1)) engine.cancel(random.integer(0, 4));
      for (const TokenEvent& event : engine.step()) testing::take(event, got[event.request]);
    }
    for (const auto& [id, request] : requests) {
      if (got[id].finish == FinishReason::kCancelled) continue;
      EXPECT_EQ(got[id], run_alone(plain, request)) << "request " << id;
    }
    testing::expect_all_pages_free(engine);
  }
}

// A conversation takes over what the step on its way may still have added to.
TEST_P(RunAheadTest, AReusedCacheChangesNoToken) {
  FreshRandom random;
  Engine fresh(*model_, options(false));
  EngineOptions ahead_options = options(true);
  ahead_options.reuse_last = true;
  Engine engine(*model_, ahead_options);
  std::vector<int32_t> history = {2};
  for (int turn = 0; turn < 6; ++turn) {
    const std::vector<int32_t> question = random_prompt(random, random.integer(1, 15));
    history.insert(history.end(), question.begin(), question.end());
    GenerationRequest request = fitted(greedy_request(history, 12));
    Reply expected = run_alone(fresh, request);
    // Not in the first turn: a reply that ends with its first token takes no step ahead.
    if (turn > 0 && random.coin()) {
      request.stop.ids = {random.pick(expected.tokens)};
      expected = run_alone(fresh, request);
    }
    const Reply reply = run_alone(engine, request);
    EXPECT_EQ(reply, expected) << "turn " << turn;
    history.insert(history.end(), reply.tokens.begin(), reply.tokens.end());
  }
  EXPECT_GT(engine.stats().reused_tokens, 0);
  // A recurrent state that is kept must not go past what the next request may go on from.
  EXPECT_EQ(engine.stats().steps_ahead > 0, !GetParam().recurrent);
}

INSTANTIATE_TEST_SUITE_P(
    All, RunAheadTest,
    ::testing::Values(Case{"window", "gguf/gemma4_moe_bf16.gguf", false, false},
                      Case{"recurrent", "gguf/qwen3_5_moe_mtp_q8_0.gguf", false, true},
                      Case{"cuda_window", "gguf/gemma4_moe_bf16.gguf", true, false},
                      Case{"cuda_recurrent", "gguf/qwen3_5_moe_mtp_q8_0.gguf", true, true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace braid

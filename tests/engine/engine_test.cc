#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "engine/random_requests.h"
#include "support/fresh_seed.h"
#include "tokenizer/utf8.h"

namespace braid {
namespace {

using testing::exact_options;
using testing::expect_all_pages_free;
using testing::FreshRandom;
using testing::greedy_request;
using ::testing::HasSubstr;
using testing::model_path;
using testing::random_prompt;
using testing::random_request;
using testing::Reply;
using testing::run_alone;
using testing::tiny_model;

TEST(EngineTest, ARequestDoesNotDependOnItsCompany) {
  FreshRandom random;
  std::vector<GenerationRequest> requests;
  std::vector<Reply> alone;
  Engine single(tiny_model(), exact_options());
  for (int i = 0; i < 8; ++i) {
    requests.push_back(random_request(random));
    alone.push_back(run_alone(single, requests.back()));
    ASSERT_TRUE(alone.back().error.empty()) << alone.back().error;
    ASSERT_FALSE(alone.back().tokens.empty());
  }
  expect_all_pages_free(single);

  for (const int64_t batch_tokens : {1, 7, 512}) {
    for (int64_t max_sequences = 1; max_sequences <= 4; ++max_sequences) {
      EngineOptions options = exact_options();
      options.batch_tokens = batch_tokens;
      options.max_sequences = max_sequences;
      options.threads.num_threads = max_sequences == 3 ? 2 : 1;
      Engine engine(tiny_model(), options);
      std::map<RequestId, size_t> index_of;
      std::vector<Reply> replies(requests.size());
      size_t next = 0;
      while (next < requests.size() || !engine.idle()) {
        // Staggered arrivals: several at once, or none for a while.
        while (next < requests.size() && random.coin(0.3)) {
          index_of[engine.submit(requests[next])] = next;
          ++next;
        }
        for (const TokenEvent& event : engine.step()) {
          testing::take(event, replies[index_of.at(event.request)]);
        }
      }
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(replies[i], alone[i]) << "request " << i << ", batch_tokens " << batch_tokens
                                        << ", max_sequences " << max_sequences;
      }
      expect_all_pages_free(engine);
    }
  }
}

TEST(EngineTest, EventsComeInTheOrderOfSubmission) {
  FreshRandom random;
  EngineOptions options = exact_options();
  options.max_sequences = 4;
  Engine engine(tiny_model(), options);
  std::vector<RequestId> ids;
  for (int i = 0; i < 8; ++i) {
    ids.push_back(engine.submit(greedy_request(random_prompt(random, random.integer(1, 30)), 6)));
  }
  engine.cancel(ids[1]);
  engine.cancel(ids[6]);
  while (!engine.idle()) {
    const std::vector<TokenEvent> events = engine.step();
    for (size_t i = 1; i < events.size(); ++i) {
      EXPECT_LT(events[i - 1].request, events[i].request);
    }
  }
}

TEST(EngineTest, SeedsDecideAndStreamsKeepRequestsApart) {
  Engine engine(tiny_model(), exact_options());
  GenerationRequest request = greedy_request({2, 40, 41}, 20);
  request.sampling.temperature = 1;
  request.sampling.seed = 7;
  const Reply first = run_alone(engine, request);
  EXPECT_EQ(run_alone(engine, request), first);
  request.sampling_stream = 1;
  EXPECT_NE(run_alone(engine, request).tokens, first.tokens);
  request.sampling_stream = 0;
  request.sampling.seed = 8;
  EXPECT_NE(run_alone(engine, request).tokens, first.tokens);
}

// Cuts the text of a reply at a stop string that begins inside one token and ends inside another.
TEST(EngineTest, StopStringsMayCrossTokens) {
  FreshRandom random;
  Engine engine(tiny_model(), exact_options());
  for (int round = 0; round < 8; ++round) {
    GenerationRequest request = greedy_request(random_prompt(random, 12), 40);
    request.sampling.temperature = 1;
    request.sampling.seed = static_cast<uint64_t>(random.integer(0, 1 << 30));
    const Reply whole = run_alone(engine, request);
    ASSERT_TRUE(utf8_is_valid(whole.text));
    if (whole.text.size() < 12) continue;
    const size_t begin = static_cast<size_t>(random.integer(1, whole.text.size() - 9));
    const std::string stop = whole.text.substr(begin, 8);
    const size_t first = whole.text.find(stop);
    // Of a stop string that overlaps an earlier copy of itself, find() gives the first, too.
    GenerationRequest stopping = request;
    stopping.stop.strings = {stop};
    const Reply stopped = run_alone(engine, stopping);
    EXPECT_EQ(stopped.finish, FinishReason::kStop);
    EXPECT_EQ(stopped.text, whole.text.substr(0, first));
    EXPECT_LE(stopped.tokens.size(), whole.tokens.size());
  }
}

TEST(EngineTest, HeldBackTextIsFlushedAtTheEnd) {
  FreshRandom random;
  Engine engine(tiny_model(), exact_options());
  for (int round = 0; round < 8; ++round) {
    GenerationRequest request = greedy_request(random_prompt(random, 9), 16);
    request.sampling.temperature = 1;
    request.sampling.seed = static_cast<uint64_t>(random.integer(0, 1 << 30));
    const Reply whole = run_alone(engine, request);
    if (whole.text.empty()) continue;
    // Almost completed by the last bytes of the reply.
    request.stop.strings = {whole.text.substr(whole.text.size() / 2) + "\x01never"};
    const Reply held = run_alone(engine, request);
    EXPECT_EQ(held.text, whole.text);
    EXPECT_EQ(held.finish, FinishReason::kLength);
    EXPECT_EQ(held.text, tiny_model().tokenizer().decode(held.tokens, /*skip_special=*/true));
  }
}

TEST(EngineTest, StopIdsEndAReply) {
  Engine engine(tiny_model(), exact_options());
  GenerationRequest request = greedy_request({2, 100, 101, 102}, 30);
  request.sampling.temperature = 1;
  request.sampling.seed = 3;
  const Reply whole = run_alone(engine, request);
  ASSERT_EQ(whole.finish, FinishReason::kLength);
  ASSERT_EQ(whole.tokens.size(), 30u);
  const int32_t stop_id = whole.tokens[10];
  const auto first = std::find(whole.tokens.begin(), whole.tokens.end(), stop_id);
  request.stop.ids = {999999, stop_id};
  const Reply stopped = run_alone(engine, request);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.tokens, std::vector<int32_t>(whole.tokens.begin(), first + 1));
  // The stop token itself gives no text.
  EXPECT_EQ(stopped.text,
            tiny_model().tokenizer().decode(std::vector<int32_t>(whole.tokens.begin(), first),
                                            /*skip_special=*/true));
}

TEST(EngineTest, LengthEndsAtTheLimitOrAtTheContext) {
  EngineOptions options = exact_options();
  options.max_context = 40;
  Engine engine(tiny_model(), options);
  Reply reply = run_alone(engine, greedy_request({2, 50, 51}, 5));
  EXPECT_EQ(reply.finish, FinishReason::kLength);
  EXPECT_EQ(reply.tokens.size(), 5u);
  for (const int64_t limit : {int64_t{-1}, int64_t{1} << 31, int64_t{1} << 62}) {
    reply = run_alone(engine, greedy_request({2, 50, 51}, limit));
    EXPECT_EQ(reply.finish, FinishReason::kLength);
    EXPECT_EQ(reply.tokens.size(), 37u);
  }
  reply = run_alone(engine, greedy_request(std::vector<int32_t>(39, 60), -1));
  EXPECT_EQ(reply.tokens.size(), 1u);
  expect_all_pages_free(engine);
}

TEST(EngineTest, CancelEndsWaitingAndRunningRequests) {
  Engine engine(tiny_model(), exact_options());
  const RequestId running = engine.submit(greedy_request({2, 30}, 100));
  const RequestId waiting = engine.submit(greedy_request({2, 31}, 100));
  const RequestId last = engine.submit(greedy_request({2, 32}, 3));
  for (int i = 0; i < 4; ++i) engine.step();
  engine.cancel(waiting);
  engine.cancel(12345);
  std::vector<TokenEvent> events = engine.step();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].request, running);
  EXPECT_FALSE(events[0].finish);
  EXPECT_EQ(events[1].request, waiting);
  EXPECT_EQ(events[1].finish, FinishReason::kCancelled);
  EXPECT_FALSE(events[1].token);

  engine.cancel(running);
  events = engine.step();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].request, running);
  EXPECT_EQ(events[0].finish, FinishReason::kCancelled);
  EXPECT_EQ(events[1].request, last);
  while (!engine.idle()) engine.step();
  engine.cancel(last);
  EXPECT_TRUE(engine.step().empty());
  expect_all_pages_free(engine);
}

std::string submit_error(Engine& engine, const GenerationRequest& request) {
  try {
    engine.submit(request);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(EngineTest, SubmitRefusesWhatCannotBeComputed) {
  EngineOptions options = exact_options();
  options.max_context = 50;
  Engine engine(tiny_model(), options);
  EXPECT_THAT(submit_error(engine, greedy_request({}, 5)), HasSubstr("empty"));
  EXPECT_THAT(submit_error(engine, greedy_request({2, -1}, 5)), HasSubstr("token -1"));
  // Tokenizers may be larger than the model.
  EXPECT_THAT(submit_error(engine, greedy_request({2, 304}, 5)), HasSubstr("vocabulary of 304"));
  EXPECT_THAT(submit_error(engine, greedy_request(std::vector<int32_t>(50, 9), 5)),
              ::testing::AllOf(HasSubstr("50 tokens"), HasSubstr("context holds 50")));
  EXPECT_THAT(submit_error(engine, greedy_request({2}, 0)), HasSubstr("max tokens is 0"));
  EXPECT_THAT(submit_error(engine, greedy_request({2}, -2)), HasSubstr("max tokens is -2"));
  GenerationRequest request = greedy_request({2}, 5);
  request.sampling.temperature = std::nanf("");
  EXPECT_THAT(submit_error(engine, request), HasSubstr("temperature"));
  request = greedy_request({2}, 5);
  request.sampling.suppress_ids = {304};
  EXPECT_THAT(submit_error(engine, request), HasSubstr("304"));
  request = greedy_request({2}, 5);
  request.stop.strings = {""};
  EXPECT_THAT(submit_error(engine, request), HasSubstr("stop string"));
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(run_alone(engine, greedy_request({2}, 5)).tokens.size(), 5u);

  options.max_context = 1 << 30;
  EXPECT_THROW(Engine(tiny_model(), options), Error);
  options.max_context = -1;
  EXPECT_THROW(Engine(tiny_model(), options), Error);
}

TEST(EngineTest, NothingLeftToDrawIsAnErrorOfThatRequest) {
  EngineOptions options = exact_options();
  options.max_sequences = 2;
  Engine engine(tiny_model(), options);
  GenerationRequest request = greedy_request({2, 20}, 5);
  const Reply expected = run_alone(engine, request);
  GenerationRequest hopeless = request;
  for (int32_t id = 0; id < 304; ++id) hopeless.sampling.suppress_ids.push_back(id);
  const RequestId bad = engine.submit(hopeless);
  Reply good_reply, bad_reply;
  engine.submit(request);
  while (!engine.idle()) {
    for (const TokenEvent& event : engine.step()) {
      testing::take(event, event.request == bad ? bad_reply : good_reply);
    }
  }
  EXPECT_EQ(bad_reply.finish, FinishReason::kError);
  EXPECT_THAT(bad_reply.error, HasSubstr("suppressed"));
  EXPECT_EQ(good_reply, expected);
}

// A conversation: each turn's prompt is the whole of the last turn and some more.
TEST(EngineTest, AReusedCacheChangesNoToken) {
  FreshRandom random;
  EngineOptions options = exact_options();
  options.batch_tokens = 16;
  EngineOptions reusing = options;
  reusing.reuse_last = true;
  Engine fresh(tiny_model(), options);
  Engine engine(tiny_model(), reusing);
  std::vector<int32_t> history = {2};
  for (int turn = 0; turn < 6; ++turn) {
    const std::vector<int32_t> question = random_prompt(random, random.integer(1, 20));
    history.insert(history.end(), question.begin(), question.end());
    engine.reset_stats();
    const Reply reply = run_alone(engine, greedy_request(history, 12));
    EXPECT_EQ(reply, run_alone(fresh, greedy_request(history, 12))) << "turn " << turn;
    if (turn > 0) {
      EXPECT_GT(engine.stats().reused_tokens, 0);
    }
    EXPECT_EQ(engine.stats().reused_tokens + engine.stats().prompt_tokens,
              static_cast<int64_t>(history.size()));
    history.insert(history.end(), reply.tokens.begin(), reply.tokens.end());
  }

  // Asked again in full, and from the middle: past the window the rows before it are gone, and the
  // engine computes the prompt anew.
  for (const size_t length : {history.size(), history.size() - 5, history.size() / 2, size_t{3}}) {
    std::vector<int32_t> prompt(history.begin(), history.begin() + length);
    prompt.push_back(77);
    EXPECT_EQ(run_alone(engine, greedy_request(prompt, 12)),
              run_alone(fresh, greedy_request(prompt, 12)))
        << length;
  }

  // A request cancelled while it waits leaves the kept cache alone.
  run_alone(engine, greedy_request(history, 2));
  engine.cancel(engine.submit(greedy_request({2, 9}, 4)));
  engine.step();
  engine.reset_stats();
  run_alone(engine, greedy_request(history, 2));
  EXPECT_EQ(engine.stats().reused_tokens, static_cast<int64_t>(history.size()) - 1);
}

TEST(EngineTest, StatisticsCountEveryToken) {
  Engine engine(tiny_model(), exact_options());
  run_alone(engine, greedy_request(std::vector<int32_t>(20, 33), 6));
  EXPECT_EQ(engine.stats().prompt_tokens, 20);
  EXPECT_EQ(engine.stats().generated_tokens, 6);
  EXPECT_EQ(engine.stats().decode_tokens, 5);  // the first comes with the prompt
}

// gemma4_e2b with a NaN in the row of one token of its per-layer embedding table: only sequences
// that hold this token are touched.
class PoisonedModelTest : public ::testing::Test {
 protected:
  static constexpr int32_t kPoison = 50;

  void SetUp() override {
    const auto source = model_path("gemma4_e2b");
    std::string bytes = read_file(source / "model.safetensors");
    bool found = false;
    for (const StoredTensor& tensor : read_safetensors(source / "model.safetensors")) {
      if (!tensor.name.ends_with("embed_tokens_per_layer.weight")) continue;
      found = true;
      const int64_t width = tensor.weight.shape.dim(1);
      const std::string_view payload(reinterpret_cast<const char*>(tensor.weight.data),
                                     static_cast<size_t>(tensor.stored_bytes));
      const size_t begin = bytes.find(payload);
      ASSERT_NE(begin, std::string::npos);
      constexpr uint16_t kNan = 0x7fc0;  // bfloat16
      std::memcpy(bytes.data() + begin + kPoison * width * sizeof(kNan), &kNan, sizeof(kNan));
    }
    ASSERT_TRUE(found);
    folder_.write("model.safetensors", bytes);
    folder_.write("config.json", read_file(source / "config.json"));
    model_.emplace(LoadedModel::load(folder_.path().string()));
  }

  testing::TempFolder folder_;
  std::optional<LoadedModel> model_;
};

TEST_F(PoisonedModelTest, NanLogitsEndTheirRequestAlone) {
  EngineOptions options = exact_options();
  options.max_sequences = 3;
  options.reuse_last = true;
  Engine engine(*model_, options);
  const GenerationRequest healthy = greedy_request({2, 10, 11, 12}, 4);
  const Reply expected = run_alone(engine, healthy);
  ASSERT_EQ(expected.finish, FinishReason::kLength);
  ASSERT_THAT(expected.tokens, ::testing::Not(::testing::Contains(kPoison)));

  engine.submit(healthy);
  const RequestId bad = engine.submit(greedy_request({2, kPoison, 12}, 4));
  engine.submit(healthy);
  std::map<RequestId, Reply> replies;
  while (!engine.idle()) {
    for (const TokenEvent& event : engine.step()) testing::take(event, replies[event.request]);
  }
  for (const auto& [id, reply] : replies) {
    if (id == bad) {
      EXPECT_EQ(reply.finish, FinishReason::kError);
      EXPECT_THAT(reply.error, HasSubstr("NaN"));
      EXPECT_TRUE(reply.tokens.empty());
    } else {
      EXPECT_EQ(reply, expected);
    }
  }
  // Nothing of a failed request is used again.
  EXPECT_EQ(run_alone(engine, greedy_request({2, kPoison, 12}, 4)).finish, FinishReason::kError);
  EXPECT_EQ(run_alone(engine, healthy), expected);
}

}  // namespace
}  // namespace braid

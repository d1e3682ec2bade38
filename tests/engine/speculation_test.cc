#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "engine/engine.h"
#include "engine/random_requests.h"
#include "speculative/model_drafter.h"
#include "speculative/ngram_drafter.h"
#include "speculative/scripted_drafter.h"
#include "support/fresh_seed.h"
#include "support/multinomial.h"

namespace braid {
namespace {

using testing::exact_options;
using testing::FreshRandom;
using testing::greedy_request;
using testing::model_path;
using testing::random_prompt;
using testing::random_request;
using testing::Reply;
using testing::run_alone;
using testing::ScriptedDrafter;
using testing::tiny_model;

DrafterFactory ngram_factory() {
  return [](const DrafterSetup&) { return std::make_unique<NgramDrafter>(); };
}

// The tiny model itself, or another with the same vocabulary.
DrafterFactory model_factory(const LoadedModel& model) {
  return [&model](const DrafterSetup& setup) {
    const std::shared_ptr<const Model> borrowed(&model.model(), [](const Model*) {});
    return std::make_unique<ModelDrafter>(borrowed, setup);
  };
}

EngineOptions speculating(DrafterFactory drafter, int64_t max_drafts) {
  EngineOptions options = exact_options();
  options.speculation = {
      .drafter = std::move(drafter), .max_drafts = max_drafts, .adaptive = false};
  return options;
}

std::vector<int32_t> whole_text(const GenerationRequest& request, const Reply& reply) {
  std::vector<int32_t> text = request.prompt;
  text.insert(text.end(), reply.tokens.begin(), reply.tokens.end());
  return text;
}

// Requests of every kind with what they bring without speculation. Some stop on an id or a string
// out of the middle of their reply, but not the first, so that there is always one of full length.
struct Cases {
  Cases(FreshRandom& random, int count, int64_t max_new_tokens) {
    Engine plain(tiny_model(), exact_options());
    for (int i = 0; i < count; ++i) {
      GenerationRequest request = random_request(random, max_new_tokens);
      request.prompt[0] = 2 + i;  // no text goes on like another
      if (i == 0) request.max_new_tokens = max_new_tokens;
      Reply reply = run_alone(plain, request);
      const auto& tokens = reply.tokens;
      if (i == 0) {
      } else if (random.coin(0.2)) {
        request.stop.ids = {random.pick(tokens)};
        reply = run_alone(plain, request);
      } else if (random.coin(0.2) && reply.text.size() > 4) {
        const size_t begin = static_cast<size_t>(random.integer(0, reply.text.size() - 3));
        request.stop.strings = {reply.text.substr(begin, 3)};
        reply = run_alone(plain, request);
      }
      texts.push_back(whole_text(request, reply));
      requests.push_back(std::move(request));
      replies.push_back(std::move(reply));
    }
  }

  // All at once, arriving now and then.
  void expect_same(Engine& engine, FreshRandom& random) const {
    std::map<RequestId, size_t> index_of;
    std::vector<Reply> got(requests.size());
    size_t next = 0;
    while (next < requests.size() || !engine.idle()) {
      while (next < requests.size() && random.coin(0.3)) {
        index_of[engine.submit(requests[next])] = next;
        ++next;
      }
      for (const TokenEvent& event : engine.step()) {
        Reply& reply = got[index_of.at(event.request)];
        EXPECT_FALSE(reply.finish) << "an event after the last";
        testing::take(event, reply);
      }
    }
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(got[i], replies[i]) << "request " << i;
    testing::expect_all_pages_free(engine);
  }

  std::vector<GenerationRequest> requests;
  std::vector<Reply> replies;
  std::vector<std::vector<int32_t>> texts;
};

// Forced acceptance of all drafts, of none and of some, every draft length, batches of every
// size and small steps. The window (16) is crossed again and again.
TEST(SpeculationTest, DraftsOfAnyQualityChangeNothing) {
  FreshRandom random;
  const Cases cases(random, 10, 60);
  for (const double quality : {1.0, 0.0, 0.5, 0.8}) {
    for (int64_t max_drafts = 1; max_drafts <= 8; ++max_drafts) {
      EngineOptions options = speculating(ScriptedDrafter::factory({.texts = cases.texts,
                                                                    .quality = quality,
                                                                    .wants_hidden = random.coin(),
                                                                    .seed = random.engine()()}),
                                          max_drafts);
      options.max_sequences = random.integer(1, 5);
      options.batch_tokens = random.pick(std::vector<int64_t>{1, 7, 30, 512});
      options.threads.num_threads = random.coin() ? 1 : 2;
      options.reuse_last = random.coin(0.3);
      SCOPED_TRACE("quality " + std::to_string(quality) + ", drafts " + std::to_string(max_drafts) +
                   ", sequences " + std::to_string(options.max_sequences) + ", batch_tokens " +
                   std::to_string(options.batch_tokens));
      Engine engine(tiny_model(), options);
      if (options.reuse_last) {
        for (size_t i = 0; i < cases.requests.size(); ++i) {
          ASSERT_EQ(run_alone(engine, cases.requests[i]), cases.replies[i]) << "request " << i;
        }
      } else {
        cases.expect_same(engine, random);
      }
      if (HasFailure()) return;
      const SpeculationStats stats = *engine.speculation_stats();
      if (options.batch_tokens == 1) {
        EXPECT_EQ(stats.num_drafted(), 0);
      } else if (quality == 0) {
        EXPECT_EQ(stats.num_accepted(), 0);
      } else if (options.batch_tokens == 512) {
        // Of the first text alone there are 58 steps with a draft, unless one is accepted; all are
        // wrong by chance once in 2^58 runs.
        EXPECT_GT(stats.num_accepted(), 0);
      }
    }
  }
}

TEST(SpeculationTest, RealDraftersChangeNothing) {
  FreshRandom random;
  const Cases cases(random, 8, 60);
  for (const auto& factory : {ngram_factory(), model_factory(tiny_model())}) {
    for (const bool adaptive : {false, true}) {
      EngineOptions options = speculating(factory, random.integer(1, 6));
      options.speculation.adaptive = adaptive;
      options.max_sequences = random.integer(1, 4);
      options.batch_tokens = random.pick(std::vector<int64_t>{5, 512});
      Engine engine(tiny_model(), options);
      SCOPED_TRACE(::testing::Message() << "adaptive " << adaptive);
      cases.expect_same(engine, random);
    }
  }
}

// A model that drafts for itself is always right: its logits are the same bits.
TEST(SpeculationTest, AModelThatDraftsForItselfIsAlwaysRight) {
  FreshRandom random;
  for (const float temperature : {0.0f, 1.0f}) {
    EngineOptions options = speculating(model_factory(tiny_model()), 4);
    options.max_sequences = 3;
    Engine engine(tiny_model(), options);
    for (int i = 0; i < 3; ++i) {
      GenerationRequest request = greedy_request(random_prompt(random, 10 + 20 * i), 51);
      request.sampling.temperature = temperature;
      request.sampling.presence_penalty = 0.5;
      engine.submit(request);
    }
    while (!engine.idle()) engine.step();
    const SpeculationStats stats = *engine.speculation_stats();
    EXPECT_EQ(stats.acceptance_rate(), 1);
    EXPECT_EQ(stats.tokens_per_round(), 5);
    EXPECT_EQ(stats.rounds, 30);
    EXPECT_EQ(stats.num_drafted(), 120);
  }
}

TEST(SpeculationTest, AnEventComesWithEachToken) {
  FreshRandom random;
  Engine plain(tiny_model(), exact_options());
  GenerationRequest request = greedy_request(random_prompt(random, 10), 21);
  request.sampling.num_logprobs = 2;
  std::vector<TokenEvent> expected;
  plain.submit(request);
  while (!plain.idle()) {
    for (TokenEvent& event : plain.step()) expected.push_back(std::move(event));
  }
  std::vector<int32_t> text = request.prompt;
  for (const TokenEvent& event : expected) text.push_back(event.token->token);

  Engine engine(tiny_model(), speculating(ScriptedDrafter::factory({.texts = {text}}), 4));
  engine.submit(request);
  std::vector<TokenEvent> events;
  std::vector<size_t> counts;
  while (!engine.idle()) {
    const std::vector<TokenEvent> step = engine.step();
    counts.push_back(step.size());
    events.insert(events.end(), step.begin(), step.end());
  }
  EXPECT_THAT(counts, ::testing::ElementsAre(1, 5, 5, 5, 5));
  ASSERT_EQ(events.size(), expected.size());
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].text, expected[i].text);
    EXPECT_EQ(events[i].token->token, expected[i].token->token);
    EXPECT_EQ(events[i].token->logprob, expected[i].token->logprob);
    EXPECT_EQ(events[i].finish, expected[i].finish);
  }
}

// At the end of the context and of the allowance nothing is drafted that could not count.
TEST(SpeculationTest, LengthLimitsHoldWithinAStep) {
  FreshRandom random;
  for (int round = 0; round < 40; ++round) {
    EngineOptions options = exact_options();
    options.max_context = random.integer(20, 60);
    GenerationRequest request =
        greedy_request(random_prompt(random, random.integer(1, options.max_context - 1)),
                       random.coin() ? -1 : random.integer(1, 50));
    Engine plain(tiny_model(), options);
    const Reply expected = run_alone(plain, request);
    options.speculation = {
        .drafter = ScriptedDrafter::factory(
            {.texts = {whole_text(request, expected)}, .quality = random.coin() ? 1 : 0.7}),
        .max_drafts = random.integer(1, 8),
        .adaptive = false};
    Engine engine(tiny_model(), options);
    EXPECT_EQ(run_alone(engine, request), expected);
    EXPECT_EQ(engine.stats().generated_tokens, static_cast<int64_t>(expected.tokens.size()));
  }
}

// A conversation: the drafter's memory goes over to the request that takes over the cache.
TEST(SpeculationTest, AReusedCacheChangesNoToken) {
  FreshRandom random;
  Engine fresh(tiny_model(), exact_options());
  for (const auto& factory : {ngram_factory(), model_factory(tiny_model()),
                              ScriptedDrafter::factory({.quality = 0.5, .wants_hidden = true})}) {
    EngineOptions options = speculating(factory, 3);
    options.batch_tokens = 16;
    options.reuse_last = true;
    Engine engine(tiny_model(), options);
    std::vector<int32_t> history = {2};
    for (int turn = 0; turn < 5; ++turn) {
      const std::vector<int32_t> question = random_prompt(random, random.integer(1, 20));
      history.insert(history.end(), question.begin(), question.end());
      const Reply reply = run_alone(engine, greedy_request(history, 12));
      EXPECT_EQ(reply, run_alone(fresh, greedy_request(history, 12))) << "turn " << turn;
      // Sometimes the last tokens of the reply are taken back.
      const int64_t kept = std::max<int64_t>(0, reply.tokens.size() - random.integer(0, 3));
      history.insert(history.end(), reply.tokens.begin(), reply.tokens.begin() + kept);
    }
    EXPECT_GT(engine.stats().reused_tokens, 0);
    for (const size_t length : {history.size() - 5, history.size() / 2, size_t{3}}) {
      std::vector<int32_t> prompt(history.begin(), history.begin() + length);
      prompt.push_back(77);
      EXPECT_EQ(run_alone(engine, greedy_request(prompt, 12)),
                run_alone(fresh, greedy_request(prompt, 12)));
    }
  }
}

TEST(SpeculationTest, TheDrafterForgetsWhatEnded) {
  FreshRandom random;
  ScriptedDrafter* drafter = nullptr;
  EngineOptions options = speculating(
      [&](const DrafterSetup& setup) {
        auto made = std::make_unique<ScriptedDrafter>(setup, ScriptedDrafter::Script{});
        drafter = made.get();
        return made;
      },
      3);
  options.max_sequences = 3;
  Engine engine(tiny_model(), options);
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) {
    GenerationRequest request = random_request(random);
    request.max_new_tokens += 2;  // a step does not end it
    ids.push_back(engine.submit(std::move(request)));
  }
  engine.step();
  EXPECT_GT(drafter->num_known(), 0u);
  engine.cancel(ids[0]);
  engine.cancel(ids[4]);
  while (!engine.idle()) engine.step();
  EXPECT_EQ(drafter->num_known(), 0u);
}

// Throws in the third round, and names tokens that do not exist before.
class BadDrafter : public Drafter {
 public:
  std::string_view name() const override { return "bad"; }
  void draft(std::span<DraftRequest> requests) override {
    if (++rounds_ > 2) throw Error("no more ideas");
    for (DraftRequest& request : requests) request.drafts.assign(100, rounds_ == 1 ? -1 : 304);
  }
  void rewind(int64_t, int64_t) override {}
  void forget(int64_t) override {}

 private:
  int rounds_ = 0;
};

TEST(SpeculationTest, ADrafterThatFailsIsLeftAlone) {
  Engine plain(tiny_model(), exact_options());
  Engine engine(tiny_model(),
                speculating([](const DrafterSetup&) { return std::make_unique<BadDrafter>(); }, 3));
  const GenerationRequest request = greedy_request({2, 20, 30}, 20);
  EXPECT_EQ(run_alone(engine, request), run_alone(plain, request));
  EXPECT_EQ(engine.speculation_stats()->num_drafted(), 0);
}

TEST(SpeculationTest, DraftCountsOutOfRangeAreRefused) {
  for (const int64_t drafts : {int64_t{0}, int64_t{-1}, int64_t{65}}) {
    EXPECT_THROW(Engine(tiny_model(), speculating(ngram_factory(), drafts)), Error);
  }
}

// The distribution of sampled text. Two tokens are drawn after a prompt whose logits the test
// computes itself; drafts are always the same likely tokens.
class SampledDistributionTest : public ::testing::Test {
 protected:
  static constexpr int kDraws = 4000;
  static constexpr int32_t kTopK = 12;

  // Probabilities of the token after `tokens` at temperature 1 and top-k.
  static std::map<int32_t, double> distribution(const std::vector<int32_t>& tokens) {
    Engine engine(tiny_model(), exact_options());
    GenerationRequest request = greedy_request(tokens, 1);
    request.sampling.num_logprobs = kTopK;
    engine.submit(request);
    const SampledToken token = *engine.step().front().token;
    std::map<int32_t, double> p;
    double total = 0;
    for (const TokenLogprob& entry : token.top_logprobs) {
      total += p[entry.token] = std::exp(double{entry.logprob});
    }
    for (auto& [id, value] : p) value /= total;
    return p;
  }

  // Of the second token, whichever the first was.
  static std::map<int32_t, double> second_distribution(const std::vector<int32_t>& prompt) {
    std::map<int32_t, double> sum;
    for (const auto& [first, p] : distribution(prompt)) {
      std::vector<int32_t> tokens = prompt;
      tokens.push_back(first);
      for (const auto& [second, q] : distribution(tokens)) sum[second] += p * q;
    }
    return sum;
  }

  static double log_chance(const std::map<int32_t, double>& expected,
                           const std::map<int32_t, int>& counts) {
    std::map<int32_t, std::pair<double, int64_t>> by_token;
    for (const auto& [token, p] : expected) by_token[token].first = p;
    for (const auto& [token, count] : counts) by_token[token].second = count;
    std::vector<std::pair<double, int64_t>> cells;
    for (const auto& [token, cell] : by_token) cells.push_back(cell);
    return testing::log_chance(cells);
  }

  // Once in 10^9 runs.
  static constexpr double kLimit = -20.7;
};

TEST_F(SampledDistributionTest, SpeculationKeepsIt) {
  FreshRandom random;
  const std::vector<int32_t> prompt = random_prompt(random, 12);
  const auto first = distribution(prompt);
  const auto second = second_distribution(prompt);
  const auto likeliest = [](const std::map<int32_t, double>& p) {
    return std::max_element(p.begin(), p.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->first;
  };
  // The draft for the second token is always the likeliest one.
  std::vector<std::vector<int32_t>> texts;
  for (const auto& [token, p] : first) {
    texts.push_back(prompt);
    texts.back().push_back(token);
    texts.back().push_back(likeliest(second));
    texts.back().push_back(3);
  }
  EngineOptions options = speculating(ScriptedDrafter::factory({.texts = texts}), 1);
  options.max_sequences = 16;
  Engine engine(tiny_model(), options);
  GenerationRequest request = greedy_request(prompt, 3);
  request.sampling.temperature = 1;
  request.sampling.top_k = kTopK;
  request.sampling.seed = random.engine()();
  std::map<int32_t, int> counts;
  std::map<RequestId, int> num_tokens;
  for (int i = 0; i < kDraws; ++i) {
    request.sampling_stream = static_cast<uint64_t>(i);
    engine.submit(request);
  }
  while (!engine.idle()) {
    for (const TokenEvent& event : engine.step()) {
      if (++num_tokens[event.request] == 2) ++counts[event.token->token];
    }
  }
  const SpeculationStats stats = *engine.speculation_stats();
  EXPECT_EQ(stats.num_drafted(), kDraws);
  EXPECT_GT(stats.num_accepted(), 0);
  EXPECT_GT(log_chance(second, counts), kLimit);
}

// What the statistic is for: an engine that took a draft for being likely enough, as some have,
// would be found out.
TEST_F(SampledDistributionTest, ABiasedRuleIsFoundOut) {
  FreshRandom random;
  // A token that is nearly certain or hardly ever drawn would show nothing.
  std::map<int32_t, double> expected;
  int32_t draft = -1;
  double p = 0;
  while (p < 0.1 || p > 0.8) {
    expected = distribution(random_prompt(random, 12));
    std::tie(draft, p) =
        *std::max_element(expected.begin(), expected.end(),
                          [](const auto& x, const auto& y) { return x.second < y.second; });
  }
  std::map<int32_t, int> fair, biased;
  std::uniform_real_distribution<> uniform;
  for (int i = 0; i < kDraws; ++i) {
    const auto draw = [&] {
      double target = uniform(random.engine());
      for (const auto& [token, q] : expected) {
        if ((target -= q) < 0) return token;
      }
      return expected.rbegin()->first;
    };
    ++fair[draw()];
    // Accepted with probability p(draft), but then drawn from the whole distribution again instead
    // of what is left of it.
    ++biased[uniform(random.engine()) < p ? draft : draw()];
  }
  EXPECT_GT(log_chance(expected, fair), kLimit);
  EXPECT_LT(log_chance(expected, biased), kLimit);
}

// Its drafts are wrong, and all the same token.
class PoisonDrafter : public Drafter {
 public:
  static constexpr int32_t kPoison = 50;

  std::string_view name() const override { return "poison"; }
  void draft(std::span<DraftRequest> requests) override {
    for (DraftRequest& r : requests) r.drafts.assign(static_cast<size_t>(r.max_drafts), kPoison);
  }
  void rewind(int64_t, int64_t) override {}
  void forget(int64_t) override {}
};

// gemma4_e2b with a NaN in the row of one token of its per-layer embedding table.
TEST(SpeculationTest, NanOfADraftTouchesNothing) {
  constexpr int32_t kPoison = PoisonDrafter::kPoison;
  testing::TempFolder folder;
  const auto source = model_path("gemma4_e2b");
  std::string bytes = read_file(source / "model.safetensors");
  for (const StoredTensor& tensor : read_safetensors(source / "model.safetensors")) {
    if (!tensor.name.ends_with("embed_tokens_per_layer.weight")) continue;
    const std::string_view payload(reinterpret_cast<const char*>(tensor.weight.data),
                                   static_cast<size_t>(tensor.stored_bytes));
    const size_t begin = bytes.find(payload);
    ASSERT_NE(begin, std::string::npos);
    constexpr uint16_t kNan = 0x7fc0;  // bfloat16
    std::memcpy(bytes.data() + begin + kPoison * tensor.weight.shape.dim(1) * sizeof(kNan), &kNan,
                sizeof(kNan));
  }
  folder.write("model.safetensors", bytes);
  folder.write("config.json", read_file(source / "config.json"));
  const LoadedModel model = LoadedModel::load(folder.path().string());

  Engine plain(model, exact_options());
  const GenerationRequest request = greedy_request({2, 10, 11, 12}, 30);
  const Reply expected = run_alone(plain, request);
  ASSERT_EQ(expected.finish, FinishReason::kLength);
  ASSERT_THAT(expected.tokens, ::testing::Not(::testing::Contains(kPoison)));
  EngineOptions options =
      speculating([](const DrafterSetup&) { return std::make_unique<PoisonDrafter>(); }, 3);
  options.max_sequences = 2;
  Engine engine(model, options);
  engine.submit(greedy_request({2, kPoison, 3}, 30));
  const RequestId healthy = engine.submit(request);
  std::map<RequestId, Reply> replies;
  while (!engine.idle()) {
    for (const TokenEvent& event : engine.step()) testing::take(event, replies[event.request]);
  }
  for (const auto& [id, reply] : replies) {
    if (id == healthy) {
      EXPECT_EQ(reply, expected);
    } else {
      EXPECT_EQ(reply.finish, FinishReason::kError);
      EXPECT_THAT(reply.error, ::testing::HasSubstr("NaN"));
    }
  }
}

}  // namespace
}  // namespace braid

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>

#include "engine/drafter_choice.h"
#include "engine/loaded_model.h"
#include "runner/runner.h"
#include "speculative/drafter_setup.h"
#include "support/fresh_seed.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

std::string demo(const char* name) { return std::string(BRAID_DEMO_MODEL_FOLDER) + "/" + name; }

struct Case {
  const char* name;
  const char* target;
  std::string drafter;  // as --speculate takes it
  bool cuda = false;
};

// What every drafter promises, on a real target: the test plays the engine.
class DrafterInterfaceTest : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int64_t kMaxDrafts = 5;
  static constexpr int64_t kMaxSequences = 4;
  static constexpr int64_t kMaxContext = 400;

  static Device device() {
    return GetParam().cuda && cuda::num_devices() > 0 ? Device{DeviceKind::kCuda, 0} : Device{};
  }

  void SetUp() override {
    if (GetParam().cuda && stream_.is_cpu()) GTEST_SKIP() << "no CUDA device here";
    target_.emplace(LoadedModel::load(demo(GetParam().target), {.device = device()}));
    const Model& model = target_->model();
    pool_.emplace(model.cache_layout(),
                  CacheOptions{.max_tokens = kMaxSequences * kMaxContext,
                               .max_sequences = kMaxSequences,
                               .max_sequence_tokens = kMaxContext,
                               .max_step_tokens = 128,
                               .max_logged_tokens = kMaxDrafts + 1},
                  device());
    runner_.emplace(model, *pool_, stream_, RunnerOptions{.deterministic = GetParam().cuda});
    const DrafterSizes sizes{.max_context = kMaxContext,
                             .max_sequences = kMaxSequences,
                             .max_step_tokens = 48,
                             .max_drafts = kMaxDrafts};
    drafter_ = load_drafter(parse_drafter(GetParam().drafter),
                            *target_)(DrafterSetup(sizes, model, stream_));
  }

  struct Sequence {
    explicit Sequence(CachePool& pool) : state(pool) {}
    SequenceState state;
    std::vector<int32_t> tokens;
  };

  Sequence& start(int64_t id, testing::FreshRandom& random, int64_t prompt_tokens) {
    Sequence& sequence = sequences_.try_emplace(id, *pool_).first->second;
    for (int64_t i = 0; i < prompt_tokens; ++i) {
      sequence.tokens.push_back(static_cast<int32_t>(random.integer(20, 2000)));
    }
    return sequence;
  }

  // One step of the given sequences, each with all or `chunk` of its pending tokens, and the round
  // that follows.
  std::vector<DraftRequest> step(const std::vector<int64_t>& ids, int64_t max_drafts,
                                 int64_t chunk = 64) {
    StepPlan plan;
    for (const int64_t id : ids) {
      Sequence& s = sequences_.at(id);
      const auto pending = std::span<const int32_t>(s.tokens).subspan(s.state.length());
      const size_t count = std::min(pending.size(), static_cast<size_t>(chunk));
      plan.sequences.push_back({.sequence = &s.state, .tokens = pending.first(count)});
    }
    const StepResult result = runner_->run(plan, {.wants_hidden = drafter_->wants_hidden()});
    std::vector<DraftRequest> requests;
    int64_t row = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      Sequence& s = sequences_.at(ids[i]);
      const int64_t added = static_cast<int64_t>(plan.sequences[i].tokens.size());
      const bool drawn = s.state.length() == static_cast<int64_t>(s.tokens.size());
      if (drawn) s.tokens.push_back(highest(result, static_cast<int64_t>(i)));
      requests.push_back({.sequence = ids[i],
                          .target = &s.state,
                          .max_drafts = drawn ? max_drafts : 0,
                          .sampling = &greedy_,
                          .key = {.position = s.tokens.size()}});
      if (drafter_->wants_hidden()) {
        requests.back().hidden = result.hidden;
        requests.back().first_hidden = row;
        requests.back().num_hidden = added;
      }
      row += added;
    }
    // Only now: adding tokens moves them.
    for (size_t i = 0; i < ids.size(); ++i) requests[i].tokens = sequences_.at(ids[i]).tokens;
    drafter_->draft(requests);
    for (const DraftRequest& request : requests) {
      EXPECT_LE(static_cast<int64_t>(request.drafts.size()), request.max_drafts);
      for (const int32_t token : request.drafts) {
        EXPECT_GE(token, 0);
        EXPECT_LT(token, target_->model().vocab_size());
      }
      EXPECT_EQ(request.target->reserved(), 0);
    }
    return requests;
  }

  static int32_t highest(const StepResult& result, int64_t row) {
    const float* logits = result.logits.row<float>(row);
    return static_cast<int32_t>(std::max_element(logits, logits + result.logits.dim(1)) - logits);
  }

  void end(int64_t id) {
    drafter_->forget(id);
    sequences_.erase(id);
  }

  ThreadPool threads_{{.num_threads = 1}};
  Stream stream_{threads_, device()};
  std::optional<LoadedModel> target_;
  std::optional<CachePool> pool_;
  std::optional<Runner> runner_;
  std::unique_ptr<Drafter> drafter_;
  std::map<int64_t, Sequence> sequences_;
  SamplingParams greedy_{.temperature = 0};
};

// Drafts are a function of the text: alone or in company, after prompts in chunks or whole, after
// rounds that asked for others or none.
TEST_P(DrafterInterfaceTest, DraftsDependOnTheTextAlone) {
  if (GetParam().cuda)
    GTEST_SKIP() << "on a device, nearly: the sums of drafters, which are not deterministic, "
                    "depend on the company";
  testing::FreshRandom random;
  start(1, random, 70);
  sequences_.try_emplace(2, *pool_).first->second.tokens = sequences_.at(1).tokens;
  start(3, random, 30);
  for (int i = 0; i < 2; ++i) step({1}, 0, 64);
  ASSERT_EQ(sequences_.at(1).state.length(), 70);
  step({2, 3}, 2, 64);
  step({2, 3}, 2, 64);
  for (int i = 0; i < 5; ++i) step({1}, i % 3 == 1 ? 1 : 0);
  for (int i = 0; i < 5; ++i) step({2, 3}, i % kMaxDrafts);
  ASSERT_EQ(sequences_.at(1).tokens, sequences_.at(2).tokens);
  const auto alone = step({1}, kMaxDrafts);
  const auto together = step({3, 2}, kMaxDrafts);
  ASSERT_EQ(sequences_.at(1).tokens, sequences_.at(2).tokens);
  EXPECT_EQ(alone[0].drafts, together[1].drafts);
}

// The next sequence of the same name does not hear of the one before.
TEST_P(DrafterInterfaceTest, ForgettingStartsAnew) {
  testing::FreshRandom random;
  const std::vector<int32_t> text = start(1, random, 40).tokens;
  std::vector<int32_t> first;
  for (int i = 0; i < 4; ++i) first = step({1}, 3)[0].drafts;
  end(1);
  start(1, random, 50);
  for (int i = 0; i < 4; ++i) step({1}, 3);
  end(1);
  start(1, random, 0).tokens = text;
  std::vector<int32_t> again;
  for (int i = 0; i < 4; ++i) again = step({1}, 3)[0].drafts;
  EXPECT_EQ(again, first);
  drafter_->forget(77);
}

// Many rounds with sequences that come, go, wait and go back.
TEST_P(DrafterInterfaceTest, HoldsOutAnything) {
  testing::FreshRandom random;
  int64_t next_id = 0;
  for (int round = 0; round < 60; ++round) {
    if (sequences_.size() < kMaxSequences && random.coin(0.3)) {
      start(next_id++, random, random.integer(1, 60));
    }
    std::vector<int64_t> ids;
    for (auto& [id, sequence] : sequences_) {
      if (random.coin(0.8) && ids.size() < 2) ids.push_back(id);
    }
    if (!ids.empty()) step(ids, random.integer(0, kMaxDrafts), random.integer(1, 64));
    if (!sequences_.empty() && random.coin(0.1)) {
      auto& [id, sequence] = *sequences_.begin();
      const int64_t length = sequence.state.length() - random.integer(0, 3);
      if (length > 0 && sequence.state.truncate(length)) {
        drafter_->rewind(id, length);
        sequence.tokens.resize(static_cast<size_t>(length));
        sequence.tokens.push_back(21);
      } else {
        end(id);
      }
    }
    if (!sequences_.empty() && random.coin(0.1)) end(sequences_.begin()->first);
  }
  while (!sequences_.empty()) end(sequences_.begin()->first);
}

TEST_P(DrafterInterfaceTest, GuessesRightMoreOftenThanNot) {
  if (GetParam().drafter == "ngram") GTEST_SKIP() << "depends on the text";
  const std::string prompt = "It was a cold morning, and the old man went to the window. He";
  Sequence& sequence = sequences_.try_emplace(1, *pool_).first->second;
  sequence.tokens =
      target_->tokenizer().encode(prompt, {.add_bos = target_->tokenizer().adds_bos()});
  int right = 0, drafted = 0;
  std::optional<int32_t> guess;
  for (int i = 0; i < 100; ++i) {
    const auto requests = step({1}, 1);
    if (guess) {
      ++drafted;
      right += *guess == sequence.tokens.back();
    }
    guess.reset();
    if (!requests[0].drafts.empty()) guess = requests[0].drafts[0];
  }
  EXPECT_GE(drafted, 95);
  // The bundled drafters are right on more than 80 of 100 greedy tokens.
  EXPECT_GT(2 * right, drafted) << right << " of " << drafted;
}

INSTANTIATE_TEST_SUITE_P(
    All, DrafterInterfaceTest,
    ::testing::Values(Case{"ngram", "gemma4", "ngram"},
                      Case{"model", "gemma4", "model:" + demo("gemma4-dense")},
                      Case{"recurrent_model", "qwen3next", "model:" + demo("qwen3next")},
                      Case{"assistant", "gemma4", "assistant:" + demo("gemma4-assistant")},
                      Case{"mtp", "qwen3next", "mtp"},
                      Case{"cuda_model", "gemma4", "model:" + demo("gemma4-dense"), true},
                      Case{"cuda_recurrent_model", "qwen3next", "model:" + demo("qwen3next"), true},
                      Case{"cuda_assistant", "gemma4", "assistant:" + demo("gemma4-assistant"),
                           true},
                      Case{"cuda_mtp", "qwen3next", "mtp", true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace braid

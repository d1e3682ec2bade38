#include "runner/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "base/error.h"
#include "runner/fake_model.h"
#include "support/fresh_seed.h"

namespace braid {
namespace {

using testing::FakeModel;
using testing::FreshRandom;

class RunnerTest : public ::testing::Test {
 protected:
  void make(const CacheOptions& options) {
    pool_.emplace(model_.cache_layout(), options);
    runner_.emplace(model_, *pool_, stream_, RunnerOptions{.workspace_bytes = size_t{1} << 24});
  }
  StepResult run(std::vector<SequenceStep> sequences, const RunOptions& options = {}) {
    plan_.sequences = std::move(sequences);
    return runner_->run(plan_, options);
  }
  static void expect_row(const StepResult& result, int64_t row, std::span<const int32_t> tokens) {
    for (const int64_t column : {int64_t{0}, FakeModel::kVocab - 1}) {
      ASSERT_EQ(result.logits.row<float>(row)[column], FakeModel::expected(tokens, column))
          << "row " << row << " after " << tokens.size() << " tokens";
    }
  }

  ThreadPool threads_{{.num_threads = 2}};
  Stream stream_{threads_};
  FakeModel model_;
  std::optional<CachePool> pool_;
  std::optional<Runner> runner_;
  StepPlan plan_;
};

TEST_F(RunnerTest, RowsAreThoseAskedForInTheOrderOfThePlan) {
  make({.max_tokens = 256, .max_sequences = 4});
  const std::vector<int32_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6};
  const std::span<const int32_t> view(tokens);
  SequenceState a(*pool_), b(*pool_), c(*pool_);
  const StepResult result = run({{&a, view, WantedLogits::kNone},
                                 {&b, view.first(3), WantedLogits::kAll},
                                 {&c, view.first(7), WantedLogits::kLast}});
  ASSERT_EQ(result.status, StepStatus::kDone);
  ASSERT_EQ(result.rows.size(), 4u);
  EXPECT_EQ(result.logits.shape(), (Shape{4, FakeModel::kVocab}));
  for (int32_t t = 0; t < 3; ++t) {
    EXPECT_EQ(result.rows[t].sequence, 1);
    EXPECT_EQ(result.rows[t].token, t);
    expect_row(result, t, view.first(t + 1));
  }
  EXPECT_EQ(result.rows[3].sequence, 2);
  EXPECT_EQ(result.rows[3].token, 6);
  expect_row(result, 3, view.first(7));
  EXPECT_EQ(a.length(), 8);
  EXPECT_EQ(b.length(), 3);

  const StepResult none = run({{&a, view, WantedLogits::kNone}});
  EXPECT_EQ(none.status, StepStatus::kDone);
  EXPECT_TRUE(none.rows.empty());
  EXPECT_TRUE(none.logits.empty());
  EXPECT_EQ(a.length(), 16);
}

// Whatever the mixture of sequences, chunks and rejected tokens: each row equals the whole sequence
// computed at once.
TEST_F(RunnerTest, AnyBatchingAndAnyRollbackGiveTheSameLogits) {
  FreshRandom random;
  for (int round = 0; round < 20 && !HasFailure(); ++round) {
    const int64_t max_step_tokens = random.integer(4, 24);
    make({.page_tokens = 8,
          .max_tokens = 600,
          .max_sequences = 4,
          .max_step_tokens = max_step_tokens,
          .max_logged_tokens = max_step_tokens});
    struct Tracked {
      SequenceState state;
      std::vector<int32_t> tokens;  // committed
    };
    std::vector<Tracked> tracked;
    for (int i = 0; i < 4; ++i) tracked.push_back({SequenceState(*pool_), {}});

    for (int s = 0; s < 60; ++s) {
      std::vector<std::vector<int32_t>> fresh(tracked.size());
      std::vector<SequenceStep> steps;
      std::vector<size_t> who;
      int64_t budget = max_step_tokens;
      for (size_t i = 0; i < tracked.size(); ++i) {
        if (budget == 0 || random.coin(0.3)) continue;
        const int64_t count = random.coin() ? 1 : random.integer(1, budget);
        budget -= count;
        for (int64_t t = 0; t < count; ++t) {
          fresh[i].push_back(static_cast<int32_t>(random.integer(0, FakeModel::kVocab - 1)));
        }
        steps.push_back({&tracked[i].state, fresh[i],
                         random.pick(std::vector{WantedLogits::kAll, WantedLogits::kLast}),
                         random.coin()});
        who.push_back(i);
      }
      if (steps.empty()) continue;
      const StepResult result = run(steps);
      if (result.status != StepStatus::kDone) {  // full: the longest one ends
        auto longest = std::max_element(
            tracked.begin(), tracked.end(),
            [](const Tracked& a, const Tracked& b) { return a.tokens.size() < b.tokens.size(); });
        *longest = {SequenceState(*pool_), {}};
        continue;
      }
      for (size_t r = 0; r < result.rows.size(); ++r) {
        const size_t i = who[result.rows[r].sequence];
        std::vector<int32_t> seen = tracked[i].tokens;
        seen.insert(seen.end(), fresh[i].begin(), fresh[i].begin() + result.rows[r].token + 1);
        expect_row(result, static_cast<int64_t>(r), seen);
        EXPECT_TRUE(result.rows[r].finite);
      }
      for (size_t s = 0; s < who.size(); ++s) {
        const std::vector<int32_t>& added = fresh[who[s]];
        int64_t count = static_cast<int64_t>(added.size());
        if (!steps[s].commit) {
          EXPECT_EQ(steps[s].sequence->reserved(), count);
          count = random.integer(0, count);
          steps[s].sequence->commit(count);
        }
        std::vector<int32_t>& tokens = tracked[who[s]].tokens;
        tokens.insert(tokens.end(), added.begin(), added.begin() + count);
        // What the log still holds can be taken back later, too.
        if (random.coin(0.2) && !tokens.empty()) {
          const int64_t shortest = steps[s].sequence->min_truncate_length();
          const int64_t length = random.integer(shortest, static_cast<int64_t>(tokens.size()));
          EXPECT_TRUE(steps[s].sequence->truncate(length));
          tokens.resize(length);
        }
      }
      for (const Tracked& t : tracked) {
        ASSERT_EQ(t.state.length(), static_cast<int64_t>(t.tokens.size()));
      }
    }
    tracked.clear();
    EXPECT_TRUE(pool_->idle());
  }
}

TEST_F(RunnerTest, AFullCacheChangesNothingAndNamesTheSequence) {
  make({.page_tokens = 8, .max_tokens = 32, .max_sequences = 1, .max_step_tokens = 64});
  const std::vector<int32_t> tokens(33, 1);
  const std::span<const int32_t> view(tokens);
  SequenceState a(*pool_), b(*pool_);
  ASSERT_EQ(run({{&a, view.first(20)}}).status, StepStatus::kDone);

  const StepResult full = run({{&a, view.first(4)}, {&b, view.first(9)}});
  EXPECT_EQ(full.status, StepStatus::kCacheFull);
  EXPECT_EQ(full.sequence, 1);
  EXPECT_TRUE(full.rows.empty());
  EXPECT_EQ(a.length(), 20);
  EXPECT_EQ(a.reserved(), 0);
  EXPECT_EQ(pool_->num_used_pages(0), 3);

  const StepResult too_long = run({{&a, view.first(13)}});
  EXPECT_EQ(too_long.status, StepStatus::kSequenceTooLong);
  EXPECT_EQ(too_long.sequence, 0);
  EXPECT_EQ(run({{&a, view.first(12)}}).status, StepStatus::kDone);
}

TEST_F(RunnerTest, AFailedPassLeavesTheSequencesAsTheyWere) {
  make({.max_tokens = 256});
  const std::vector<int32_t> tokens = {1, 2, 3};
  SequenceState a(*pool_);
  model_.fail = true;
  EXPECT_THROW(run({{&a, tokens}}), Error);
  EXPECT_EQ(a.length(), 0);
  EXPECT_EQ(a.reserved(), 0);
  EXPECT_TRUE(pool_->idle());
  model_.fail = false;
  const StepResult result = run({{&a, tokens}});
  expect_row(result, 0, tokens);
}

TEST_F(RunnerTest, ARecurrentStateThatAFailedPassMayHaveTouchedIsNotUsedAgain) {
  make({.max_tokens = 256});
  const std::vector<int32_t> tokens = {1, 2, 3};
  SequenceState a(*pool_);
  run({{&a, tokens}});
  model_.fail = true;
  EXPECT_THROW(run({{&a, tokens}}), Error);
  model_.fail = false;
  EXPECT_EQ(a.length(), 3);
  EXPECT_FALSE(a.valid());
  EXPECT_FALSE(a.truncate(2));
  EXPECT_TRUE(a.truncate(0));
  EXPECT_TRUE(a.valid());
  expect_row(run({{&a, tokens}}), 0, tokens);
}

TEST_F(RunnerTest, ASnapshotBringsARecurrentStateBack) {
  make({.page_tokens = 8, .max_tokens = 256, .max_step_tokens = 32, .max_logged_tokens = 8});
  const std::vector<int32_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7};
  const std::span<const int32_t> view(tokens);
  for (const bool logged : {false, true}) {
    SequenceState a(*pool_);
    run({{&a, view.first(6)}});
    if (logged) {
      run({{&a, view.subspan(6, 4), WantedLogits::kNone, /*commit=*/false}});
      a.commit(2);
    } else {
      run({{&a, view.subspan(6, 2)}});
    }
    const RecurrentSnapshot at_8 = a.snapshot();
    EXPECT_EQ(at_8.length, 8);
    run({{&a, view.subspan(1, 3)}});
    EXPECT_FALSE(a.truncate(8));
    EXPECT_TRUE(a.truncate(at_8));
    EXPECT_EQ(a.length(), 8);
    expect_row(run({{&a, view.subspan(8)}}), 0, view);
  }
}

TEST_F(RunnerTest, HiddenStatesOfAllRowsComeOnRequest) {
  make({.max_tokens = 256, .max_sequences = 2});
  const std::vector<int32_t> tokens = {3, 1, 4, 1, 5};
  SequenceState a(*pool_), b(*pool_);
  const StepResult result =
      run({{&a, tokens, WantedLogits::kNone}, {&b, tokens}}, {.wants_hidden = true});
  ASSERT_EQ(result.hidden.shape(), (Shape{10, model_.hidden_size()}));
  EXPECT_EQ(*result.hidden.row<float>(9), FakeModel::expected(tokens, 0));
  EXPECT_EQ(*result.hidden.row<float>(4), FakeModel::expected(tokens, 0));
  EXPECT_TRUE(run({{&a, tokens}}).hidden.empty());
}

TEST_F(RunnerTest, TokensOutsideTheVocabularyAreRefused) {
  make({.max_tokens = 256});
  SequenceState a(*pool_);
  for (const int32_t bad : {-1, static_cast<int32_t>(FakeModel::kVocab)}) {
    const std::vector<int32_t> tokens = {1, bad};
    try {
      run({{&a, tokens}});
      ADD_FAILURE() << "accepted " << bad;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("vocabulary of 50"));
    }
  }
  EXPECT_EQ(a.reserved(), 0);
}

TEST_F(RunnerTest, BadLogitsAreReportedByRow) {
  make({.max_tokens = 256, .max_sequences = 2});
  const std::vector<int32_t> tokens = {1, 2, 3, 2};
  for (const float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    model_.poisoned_token = 2;
    model_.poison = poison;
    SequenceState a(*pool_);
    const StepResult result = run({{&a, tokens, WantedLogits::kAll}});
    std::vector<bool> finite;
    for (const LogitsRow& row : result.rows) finite.push_back(row.finite);
    EXPECT_EQ(finite, (std::vector<bool>{true, false, true, false}));
  }
  model_.poison = std::numeric_limits<float>::max();
  SequenceState a(*pool_);
  for (const LogitsRow& row : run({{&a, tokens, WantedLogits::kAll}}).rows) {
    EXPECT_TRUE(row.finite);
  }
}

TEST_F(RunnerTest, TheObserverIsPassedOn) {
  struct Counter : StepContext::Observer {
    void layer_output(int64_t, const TensorView&) override { ++calls; }
    int calls = 0;
  } counter;
  make({.max_tokens = 256});
  const std::vector<int32_t> tokens = {1};
  SequenceState a(*pool_);
  run({{&a, tokens}}, {.observer = &counter});
  EXPECT_EQ(counter.calls, 1);
}

using RunnerDeathTest = RunnerTest;

TEST_F(RunnerDeathTest, MisuseIsCaught) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  make({.max_tokens = 256, .max_step_tokens = 4});
  const std::vector<int32_t> tokens(5, 1);
  SequenceState a(*pool_);
  EXPECT_DEATH(run({{&a, tokens}}), "with 5 tokens, at most 4");
  EXPECT_DEATH(run({{&a, {}}}), "without new tokens");
  EXPECT_DEATH(run({}), "0 sequences");
  const std::span<const int32_t> one = std::span(tokens).first(1);
  EXPECT_DEATH(run({{&a, one}, {&a, one}}), "appears twice");
  EXPECT_DEATH(run({{&a, one, WantedLogits::kLast, false}}), "1 tokens in a log of 0");
  CachePool other(model_.cache_layout(), {.max_tokens = 64});
  SequenceState stranger(other);
  EXPECT_DEATH(run({{&stranger, one}}), "another pool");
}

}  // namespace
}  // namespace braid

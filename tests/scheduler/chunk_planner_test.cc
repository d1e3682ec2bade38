#include "scheduler/chunk_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/fresh_seed.h"

namespace braid {
namespace {

class ChunkPlanner : public ::testing::Test {
 protected:
  static CacheLayout layout() {
    CacheLayout layout;
    layout.layers = {FullKv{1, 2}};
    return layout;
  }

  CachePool pool_{layout(), {.max_tokens = 4096, .max_sequences = 8}};
  std::vector<int32_t> tokens_ = std::vector<int32_t>(1000, 7);
  StepPlan plan_;
};

TEST_F(ChunkPlanner, DecodingComesFirstThenChunksInOrderOfArrival) {
  SequenceState a(pool_), b(pool_), c(pool_), d(pool_), idle(pool_);
  const std::span<const int32_t> tokens(tokens_);
  const std::vector<PendingTokens> pending = {
      {&a, tokens.first(20)}, {&b, tokens.first(1)}, {&idle, {}},
      {&c, tokens.first(30)}, {&d, tokens.first(1)},
  };
  plan_chunks(pending, {.budget = 32}, plan_);
  ASSERT_EQ(plan_.sequences.size(), 4u);
  EXPECT_EQ(plan_.sequences[0].sequence, &b);
  EXPECT_EQ(plan_.sequences[1].sequence, &d);
  EXPECT_EQ(plan_.sequences[2].sequence, &a);
  EXPECT_EQ(plan_.sequences[2].tokens.size(), 20u);
  EXPECT_EQ(plan_.sequences[2].logits, WantedLogits::kLast);
  EXPECT_EQ(plan_.sequences[3].sequence, &c);
  EXPECT_EQ(plan_.sequences[3].tokens.size(), 10u);
  EXPECT_EQ(plan_.sequences[3].logits, WantedLogits::kNone);
  EXPECT_EQ(plan_.num_tokens(), 32);
}

TEST_F(ChunkPlanner, ChunksKeepWhatTheCallerWantsOfEachToken) {
  SequenceState a(pool_), b(pool_);
  const std::span<const int32_t> tokens(tokens_);
  plan_chunks(std::vector<PendingTokens>{{&a, tokens, WantedLogits::kAll}}, {.budget = 8}, plan_);
  EXPECT_EQ(plan_.sequences[0].logits, WantedLogits::kAll);
  plan_chunks(std::vector<PendingTokens>{{&a, tokens.first(3), WantedLogits::kNone}}, {.budget = 8},
              plan_);
  EXPECT_EQ(plan_.sequences[0].logits, WantedLogits::kNone);
  plan_chunks(std::vector<PendingTokens>{{&a, {}}}, {.budget = 8}, plan_);
  EXPECT_TRUE(plan_.sequences.empty());
}

TEST_F(ChunkPlanner, GuessesTakeWhatDecodingLeaves) {
  SequenceState a(pool_), b(pool_), c(pool_);
  const std::span<const int32_t> tokens(tokens_);
  const std::vector<PendingTokens> pending = {
      {&a, tokens.first(4), WantedLogits::kLast, 3},
      {&b, tokens.first(50)},
      {&c, tokens.first(3), WantedLogits::kLast, 2},
  };
  const auto sizes = [&](int64_t budget) {
    plan_chunks(pending, {.budget = budget}, plan_);
    std::vector<std::pair<const SequenceState*, size_t>> sizes;
    for (const SequenceStep& step : plan_.sequences) {
      sizes.emplace_back(step.sequence, step.tokens.size());
      const bool guesses = step.sequence != &b && step.tokens.size() > 1;
      EXPECT_EQ(step.commit, !guesses);
      if (step.sequence != &b) {
        EXPECT_EQ(step.logits, guesses ? WantedLogits::kAll : WantedLogits::kLast);
      }
    }
    return sizes;
  };
  using Sizes = std::vector<std::pair<const SequenceState*, size_t>>;
  EXPECT_EQ(sizes(1), (Sizes{{&a, 1}}));
  EXPECT_EQ(sizes(2), (Sizes{{&a, 1}, {&c, 1}}));
  EXPECT_EQ(sizes(4), (Sizes{{&a, 3}, {&c, 1}}));
  EXPECT_EQ(sizes(6), (Sizes{{&a, 4}, {&c, 2}}));
  EXPECT_EQ(sizes(10), (Sizes{{&a, 4}, {&c, 3}, {&b, 3}}));
}

// Whatever else is in the step, chunks end where they would end alone, or at another multiple.
TEST_F(ChunkPlanner, ChunksEndAtAlignedPositions) {
  testing::FreshRandom random;
  for (int round = 0; round < 200; ++round) {
    const ChunkOptions options{.budget = random.integer(1, 100),
                               .alignment = random.integer(1, 64)};
    std::vector<SequenceState> sequences;
    std::vector<std::span<const int32_t>> left;
    for (int64_t i = random.integer(1, 4); i > 0; --i) {
      sequences.emplace_back(pool_);
      left.push_back(std::span(tokens_).first(static_cast<size_t>(random.integer(1, 300))));
    }
    for (int steps = 0;; ++steps) {
      std::vector<PendingTokens> pending;
      for (size_t i = 0; i < left.size(); ++i) pending.push_back({&sequences[i], left[i]});
      plan_chunks(pending, options, plan_);
      if (plan_.sequences.empty()) break;
      ASSERT_LT(steps, 1200);
      ASSERT_LE(plan_.num_tokens(), max_planned_tokens(options));
      for (const SequenceStep& step : plan_.sequences) {
        const size_t i = static_cast<size_t>(step.sequence - sequences.data());
        const int64_t count = static_cast<int64_t>(step.tokens.size());
        ASSERT_TRUE(step.sequence->reserve(count));
        step.sequence->commit(count);
        left[i] = left[i].subspan(step.tokens.size());
        if (!left[i].empty()) {
          ASSERT_EQ(step.sequence->length() % options.alignment, 0);
        }
      }
    }
    for (const auto& tokens : left) ASSERT_TRUE(tokens.empty());
  }
}

TEST_F(ChunkPlanner, DecodingDoesNotKeepAnAlignedChunkWaiting) {
  SequenceState decoding(pool_), prompt(pool_);
  const std::span<const int32_t> tokens(tokens_);
  const std::vector<PendingTokens> pending = {{&decoding, tokens.first(1)},
                                              {&prompt, tokens.first(200)}};
  plan_chunks(pending, {.budget = 64, .alignment = 64}, plan_);
  ASSERT_EQ(plan_.sequences.size(), 2u);
  EXPECT_EQ(plan_.sequences[1].tokens.size(), 64u);
}

TEST_F(ChunkPlanner, RoundsComputeEveryTokenOnceAndInOrder) {
  testing::FreshRandom random;
  for (int round = 0; round < 200; ++round) {
    const int64_t budget = random.integer(1, 40);
    std::vector<SequenceState> sequences;
    std::vector<std::span<const int32_t>> left;
    for (int64_t i = random.integer(1, 6); i > 0; --i) {
      sequences.emplace_back(pool_);
      left.push_back(std::span(tokens_).first(static_cast<size_t>(random.integer(0, 100))));
    }
    const auto pending_tokens = [&] {
      int64_t sum = 0;
      for (const auto& tokens : left) sum += static_cast<int64_t>(tokens.size());
      return sum;
    };
    while (pending_tokens() > 0) {
      std::vector<PendingTokens> pending;
      for (size_t i = 0; i < left.size(); ++i) pending.push_back({&sequences[i], left[i]});
      plan_chunks(pending, {.budget = budget}, plan_);
      // The budget is used up unless nothing is left.
      ASSERT_EQ(plan_.num_tokens(), std::min(budget, pending_tokens()));
      for (const SequenceStep& step : plan_.sequences) {
        const size_t i = static_cast<size_t>(step.sequence - sequences.data());
        ASSERT_EQ(step.tokens.data(), left[i].data());
        ASSERT_FALSE(step.tokens.empty());
        const bool last = step.tokens.size() == left[i].size();
        ASSERT_EQ(step.logits, last ? WantedLogits::kLast : WantedLogits::kNone);
        left[i] = left[i].subspan(step.tokens.size());
      }
    }
  }
}

}  // namespace
}  // namespace braid

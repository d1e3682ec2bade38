#include "scheduler/step_plan.h"

#include <gtest/gtest.h>

namespace braid {
namespace {

TEST(StepPlan, CommitKeepsEachSequencesCount) {
  CacheLayout layout;
  layout.layers = {FullKv{1, 2}};
  CachePool pool(layout, {.max_tokens = 256, .max_sequences = 2});
  SequenceState a(pool);
  SequenceState b(pool);
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5};
  StepPlan plan;
  EXPECT_EQ(plan.num_tokens(), 0);
  plan.sequences = {{&a, tokens}, {&b, std::span(tokens).first(2)}};
  EXPECT_EQ(plan.num_tokens(), 7);
  ASSERT_TRUE(a.reserve(5) && b.reserve(2));
  commit(plan, std::vector<int64_t>{3, 0});
  EXPECT_EQ(a.length(), 3);
  EXPECT_EQ(b.length(), 0);
  EXPECT_EQ(pool.num_used_pages(0), 1);
}

}  // namespace
}  // namespace braid

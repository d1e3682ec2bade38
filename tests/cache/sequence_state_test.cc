#include "cache/sequence_state.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

namespace braid {
namespace {

CacheLayout small_layout() {
  CacheLayout layout;
  layout.layers = {WindowKv{1, 2, 20}, FullKv{1, 4}, SharesKvOf{0}};
  return layout;
}

TEST(SequenceState, ShortRequestHoldsOnePageAGroup) {
  CachePool pool(small_layout(), {.max_tokens = 4096, .max_sequences = 4});
  SequenceState sequence(pool);
  EXPECT_TRUE(pool.idle());
  ASSERT_TRUE(sequence.reserve(12));
  sequence.commit(12);
  EXPECT_EQ(pool.num_used_pages(0), 1);
  EXPECT_EQ(pool.num_used_pages(1), 1);
  EXPECT_EQ(pool.used_bytes(), pool.plan().sequence_bytes(12));
}

TEST(SequenceState, ReservationsAddUpAndCommitForgetsTheRest) {
  CachePool pool(small_layout(), {.page_tokens = 8, .max_tokens = 256, .max_step_tokens = 32});
  SequenceState sequence(pool);
  ASSERT_TRUE(sequence.reserve(5));
  ASSERT_TRUE(sequence.reserve(20));
  EXPECT_EQ(sequence.reserved(), 25);
  EXPECT_EQ(sequence.pages(1).size(), 4u);
  sequence.commit(8);
  EXPECT_EQ(sequence.length(), 8);
  EXPECT_EQ(sequence.reserved(), 0);
  EXPECT_EQ(sequence.pages(1).size(), 1u);
  ASSERT_TRUE(sequence.reserve(0));
  sequence.commit(0);
  EXPECT_EQ(sequence.length(), 8);
}

TEST(SequenceState, WindowPagesStopGrowing) {
  CachePool pool(small_layout(), {.page_tokens = 8, .max_tokens = 4096, .max_step_tokens = 8});
  SequenceState sequence(pool);
  const size_t ring = static_cast<size_t>(pool.plan().groups[0].max_pages_per_sequence);
  EXPECT_EQ(ring, (19u + 8u + 7u) / 8u + 1u);
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(sequence.reserve(7));
    sequence.commit(7);
    ASSERT_LE(sequence.pages(0).size(), ring);
  }
  EXPECT_EQ(sequence.pages(0).size(), ring);
  EXPECT_EQ(sequence.pages(1).size(), (1400u + 7u) / 8u);
}

TEST(SequenceState, RefusalLeavesEverythingAsItWas) {
  CachePool pool(small_layout(), {.page_tokens = 8, .max_tokens = 64, .max_step_tokens = 64});
  SequenceState first(pool);
  SequenceState second(pool);
  ASSERT_TRUE(first.reserve(50));
  first.commit(50);
  ASSERT_TRUE(second.reserve(8));
  second.commit(8);
  EXPECT_EQ(pool.num_free_pages(1), 0);
  EXPECT_FALSE(second.reserve(1));
  EXPECT_EQ(second.length(), 8);
  EXPECT_EQ(second.reserved(), 0);
  EXPECT_EQ(second.pages(0).size(), 1u);
  { const SequenceState gone = std::move(first); }
  EXPECT_TRUE(second.reserve(1));
}

TEST(SequenceState, NoSequenceGrowsPastItsLimit) {
  CachePool pool(small_layout(),
                 {.max_tokens = 1000, .max_sequences = 10, .max_sequence_tokens = 100});
  SequenceState sequence(pool);
  EXPECT_EQ(sequence.remaining_tokens(), 100);
  EXPECT_FALSE(sequence.reserve(101));
  ASSERT_TRUE(sequence.reserve(100));
  EXPECT_EQ(sequence.remaining_tokens(), 0);
  EXPECT_FALSE(sequence.reserve(1));
  sequence.commit(100);
  EXPECT_FALSE(sequence.reserve(1));
}

TEST(SequenceState, TruncateStopsWhereTheRingHasWrapped) {
  CachePool pool(small_layout(), {.page_tokens = 8, .max_tokens = 4096, .max_step_tokens = 8});
  SequenceState sequence(pool);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(sequence.reserve(8));
    sequence.commit(8);
  }
  // The ring has 40 slots: of 160 tokens, 120 and later are left; token 139 sees 120 to 139.
  EXPECT_EQ(sequence.min_truncate_length(), 139);
  EXPECT_FALSE(sequence.truncate(138));
  EXPECT_EQ(sequence.length(), 160);
  EXPECT_TRUE(sequence.truncate(139));
  EXPECT_EQ(sequence.length(), 139);
  EXPECT_TRUE(sequence.truncate(0));
  EXPECT_TRUE(pool.idle());
  EXPECT_EQ(sequence.min_truncate_length(), 0);
}

TEST(SequenceState, MovesTakeThePagesAlong) {
  CachePool pool(small_layout(), {.max_tokens = 4096, .max_sequences = 4});
  std::optional<SequenceState> first(std::in_place, pool);
  ASSERT_TRUE(first->reserve(40));
  first->commit(40);
  SequenceState second(std::move(*first));
  first.reset();
  EXPECT_EQ(second.length(), 40);
  EXPECT_EQ(pool.num_used_pages(1), 2);
  second = SequenceState(pool);
  EXPECT_EQ(second.length(), 0);
  EXPECT_TRUE(pool.idle());
}

TEST(SequenceStateDeathTest, MisuseIsCaught) {
  CachePool pool(small_layout(), {.max_tokens = 4096, .max_step_tokens = 16});
  SequenceState sequence(pool);
  EXPECT_DEATH(sequence.reserve(17), "a step has at most 16");
  ASSERT_TRUE(sequence.reserve(10));
  EXPECT_DEATH(sequence.reserve(7), "beside 10 reserved");
  EXPECT_DEATH(sequence.commit(11), "commit 11 of 10");
  EXPECT_DEATH(sequence.truncate(0), "10 reserved");
  EXPECT_DEATH(
      {
        auto owner = std::make_unique<CachePool>(small_layout(), CacheOptions{.max_tokens = 100});
        SequenceState orphan(*owner);
        orphan.reserve(1);
        owner.reset();
      },
      "still held by sequences");
}

CacheLayout recurrent_layout() {
  CacheLayout layout;
  const RecurrentState state{2, 4, 8, 6, 56, 4};
  layout.layers = {state, FullKv{1, 4}, state, RecurrentState{1, 1, 2, 2, 6, 2}};
  return layout;
}

TEST(SequenceState, ARecurrentSlotIsHeldFromTheFirstTokenToTheLast) {
  CachePool pool(recurrent_layout(), {.max_tokens = 256, .max_sequences = 2});
  EXPECT_EQ(pool.num_recurrent_groups(), 2);
  std::optional<SequenceState> a(pool), b(pool), c(pool);
  EXPECT_EQ(a->slot(0), -1);
  ASSERT_TRUE(a->reserve(3));
  ASSERT_TRUE(b->reserve(3));
  EXPECT_NE(a->slot(0), b->slot(0));
  EXPECT_FALSE(c->reserve(1));
  EXPECT_EQ(c->reserved(), 0);
  EXPECT_EQ(pool.num_used_pages(0), 2);

  a->set_written(/*logged=*/false);
  a->commit(3);
  EXPECT_EQ(pool.used_bytes() - pool.plan().sequence_bytes(3) * 2, 0);
  const int32_t slot = a->slot(1);
  SequenceState moved = std::move(*a);
  EXPECT_EQ(moved.slot(1), slot);
  a.reset();
  b->commit(0);  // nothing was written: an empty sequence holds nothing
  EXPECT_EQ(pool.num_free_slots(0), 1);
  ASSERT_TRUE(c->reserve(1));
  c.reset();
  EXPECT_TRUE(moved.truncate(0));
  EXPECT_EQ(pool.num_free_slots(0), 2);
  EXPECT_EQ(pool.num_free_slots(1), 2);
  EXPECT_TRUE(pool.idle());
}

TEST(SequenceState, TokensInTheLogCanBeTakenBackUntilTheNextStep) {
  CachePool pool(recurrent_layout(), {.max_tokens = 256, .max_logged_tokens = 8});
  SequenceState sequence(pool);
  ASSERT_TRUE(sequence.reserve(5));
  sequence.set_written(/*logged=*/false);
  sequence.commit(5);
  EXPECT_EQ(sequence.num_replayed(), 0);
  EXPECT_EQ(sequence.min_truncate_length(), 5);
  EXPECT_FALSE(sequence.truncate(4));

  ASSERT_TRUE(sequence.reserve(8));
  sequence.set_written(/*logged=*/true);
  sequence.commit(6);
  EXPECT_EQ(sequence.length(), 11);
  EXPECT_EQ(sequence.num_replayed(), 6);
  EXPECT_EQ(sequence.min_truncate_length(), 5);
  ASSERT_TRUE(sequence.truncate(7));
  EXPECT_EQ(sequence.num_replayed(), 2);
  ASSERT_TRUE(sequence.truncate(5));
  EXPECT_EQ(sequence.num_replayed(), 0);

  ASSERT_TRUE(sequence.reserve(1));
  sequence.commit(0);
  EXPECT_EQ(sequence.length(), 5);
}

TEST(SequenceStateDeathTest, ARecurrentStateIsCommittedAsItWasWritten) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  CachePool pool(recurrent_layout(), {.max_tokens = 256, .max_logged_tokens = 2});
  SequenceState sequence(pool);
  ASSERT_TRUE(sequence.reserve(3));
  EXPECT_DEATH(sequence.commit(3), "cannot be stepped back");
  EXPECT_DEATH(sequence.set_written(/*logged=*/true), "3 tokens in a log of 2");
  sequence.set_written(/*logged=*/false);
  EXPECT_DEATH(sequence.commit(2), "cannot be stepped back");
  sequence.commit(3);
}

}  // namespace
}  // namespace braid

#include "ops/attention/attention_plan.h"

#include <algorithm>
#include <map>

#include "ops/op_test.h"

namespace braid {
namespace {

TEST(AttentionPlan, CoversEveryQueryAndSplitsLongSequences) {
  Random random;
  SCOPED_TRACE(fmt::format("BRAID_TEST_SEED={}", random.seed()));
  Workspace workspace(size_t{1} << 28);
  int split_items = 0;
  for (int round = 0; round < 200; ++round) {
    Workspace::Scope scope(workspace);
    const AttentionShape shape{.kv_heads = random.integer(1, 4),
                               .group = random.integer(1, 40),
                               .head_dim = 64,
                               .window = random.pick<int64_t>({0, 0, 1, 1024, 3000})};
    std::vector<SequenceRows> sequences;
    const int64_t count = random.integer(0, 4);
    for (int64_t s = 0; s < count; ++s) {
      sequences.push_back({.num_rows = random.integer(0, 1) ? 1 : random.integer(0, 100),
                           .first_position = random.integer(0, 20000)});
    }
    const AttentionPlan plan =
        plan_attention(workspace, sequences, shape, static_cast<int>(random.integer(1, 16)));
    // (sequence, head, query) -> the splits it is given
    std::map<std::tuple<int64_t, int64_t, int64_t>, std::vector<int64_t>> given;
    std::map<int32_t, int32_t> arrivals;
    for (const AttentionItem& item : plan.items) {
      if (item.split >= 0) ++split_items, ++arrivals[item.countdown];
      for (int64_t q = 0; q < item.num_queries; ++q) {
        given[{item.sequence, item.kv_head, item.first_query + q}].push_back(item.split);
      }
    }
    for (size_t i = 0; i < plan.countdowns.size(); ++i) {
      EXPECT_EQ(plan.countdowns[i], arrivals[static_cast<int32_t>(i)]);
    }
    size_t expected = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        for (int64_t q = 0; q < sequences[s].num_rows * shape.group; ++q, ++expected) {
          const std::vector<int64_t>& splits = given[{static_cast<int64_t>(s), head, q}];
          ASSERT_FALSE(splits.empty());
          if (splits == std::vector<int64_t>{-1}) continue;
          const KeyRange keys = visible_keys(sequences[s], q / shape.group, shape.window);
          for (int64_t split = first_split(keys); split < first_split(keys) + num_splits(keys);
               ++split) {
            ASSERT_EQ(std::count(splits.begin(), splits.end(), split), 1);
          }
        }
      }
    }
    EXPECT_EQ(given.size(), expected);
  }
  EXPECT_GT(split_items, 0);

  // One token after 100,000, on 16 threads: no thread is left without work.
  const std::vector<SequenceRows> lone = {{.num_rows = 1, .first_position = 100000}};
  Workspace::Scope scope(workspace);
  EXPECT_GE(plan_attention(workspace, lone, {.group = 8, .head_dim = 64}, 16).items.size(), 16u);
}

}  // namespace
}  // namespace braid

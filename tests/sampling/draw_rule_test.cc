#include "sampling/draw_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "support/fresh_seed.h"

namespace braid {
namespace {

// One edit a token, with all that the parameters and the text say of it.
TEST(DrawRule, EditsAreJoinedByToken) {
  testing::FreshRandom random;
  for (int round = 0; round < 200; ++round) {
    const auto token = [&] { return static_cast<int32_t>(random.integer(0, 30)); };
    SamplingParams params{.temperature = 0.5f, .num_logprobs = 3};
    std::map<int32_t, float> bias;
    std::map<int32_t, int32_t> counts;
    for (int i = 0; i < random.integer(0, 10); ++i) bias[token()] = 0.5f;
    for (const auto& [id, value] : bias) params.logit_bias.push_back({id, value});
    for (int i = 0; i < random.integer(0, 5); ++i) {
      params.suppress_ids.push_back(token());
      bias[params.suppress_ids.back()] = -std::numeric_limits<float>::infinity();
    }
    TokenHistory history;
    std::vector<int32_t> further;
    if (random.coin()) {
      params.frequency_penalty = 1;
      for (int i = 0; i < random.integer(0, 20); ++i) {
        const int32_t id = token();
        history.add_prompt(std::vector<int32_t>{id});
        counts.try_emplace(id, 0);
      }
      for (int i = 0; i < random.integer(0, 20); ++i) {
        const int32_t id = token();
        ++counts[id];
        if (random.coin(0.7)) {
          history.add_output(id);
        } else {
          further.push_back(id);
        }
      }
    }
    std::vector<LogitEdit> edits;
    const SamplingKey key{.seed = 1, .request = 2, .position = 3};
    const DrawRule rule = make_draw_rule(params, &history, further, key, edits);
    std::set<int32_t> seen;
    for (const LogitEdit& edit : rule.edits) {
      EXPECT_TRUE(seen.insert(edit.token).second) << edit.token << " twice";
      EXPECT_EQ(edit.output_count, counts.contains(edit.token) ? counts[edit.token] : -1);
      EXPECT_EQ(edit.bias, bias.contains(edit.token) ? bias[edit.token] : 0);
    }
    for (const auto& [id, value] : bias) EXPECT_TRUE(seen.contains(id));
    for (const auto& [id, value] : counts) EXPECT_TRUE(seen.contains(id));
    EXPECT_EQ(rule.num_logprobs, 3);
    EXPECT_EQ(rule.temperature, 0.5f);
    EXPECT_EQ(rule.key.position, 3u);
  }
}

}  // namespace
}  // namespace braid

#include "speculative/ngram_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/fresh_seed.h"

namespace braid {
namespace {

using Tokens = std::vector<int32_t>;

Tokens draft(NgramDrafter& drafter, const Tokens& tokens, int64_t max_drafts,
             int64_t sequence = 0) {
  DraftRequest request{.sequence = sequence, .tokens = tokens, .max_drafts = max_drafts};
  drafter.draft({&request, 1});
  return request.drafts;
}

// By looking through the whole text.
Tokens expected(const Tokens& tokens, int64_t max_drafts) {
  const int64_t length = static_cast<int64_t>(tokens.size());
  for (int64_t n = NgramDrafter::kMaxMatch; n >= NgramDrafter::kMinMatch; --n) {
    for (int64_t end = length - 1; end >= n; --end) {
      if (!std::equal(tokens.end() - n, tokens.end(), tokens.begin() + end - n)) continue;
      Tokens longer = tokens;
      for (int64_t i = 0; i < max_drafts; ++i) longer.push_back(longer[end + i]);
      return {longer.begin() + length, longer.end()};
    }
  }
  return {};
}

TEST(NgramDrafter, TheLongestMatchCountsThenTheMostRecent) {
  NgramDrafter drafter;
  EXPECT_EQ(draft(drafter, {1, 2, 3, 4, 5, 9, 3, 4, 6, 2, 3, 4}, 2), (Tokens{5, 9}));
  EXPECT_EQ(draft(drafter, {7, 8, 1, 7, 8, 2, 7, 8}, 1, 1), (Tokens{2}));
  EXPECT_EQ(draft(drafter, {1, 2, 3}, 4, 2), Tokens{});
  EXPECT_EQ(draft(drafter, {}, 4, 3), Tokens{});
}

TEST(NgramDrafter, AMatchMayRunIntoTheDrafts) {
  NgramDrafter drafter;
  EXPECT_EQ(draft(drafter, {5, 1, 2, 1, 2, 1}, 5), (Tokens{2, 1, 2, 1, 2}));
  EXPECT_EQ(draft(drafter, {4, 4, 4}, 3, 1), (Tokens{4, 4, 4}));
}

TEST(NgramDrafter, IncrementalRoundsFindWhatASearchFinds) {
  testing::FreshRandom random;
  NgramDrafter drafter;
  std::vector<Tokens> texts(3);
  for (int round = 0; round < 600; ++round) {
    const int64_t id = random.integer(0, 2);
    Tokens& text = texts[id];
    if (random.coin(0.02)) {
      // A conversation that goes on from an earlier point.
      text.resize(static_cast<size_t>(random.integer(0, text.size())));
      drafter.rewind(id, static_cast<int64_t>(text.size()));
    } else if (random.coin(0.01)) {
      drafter.forget(id);
    }
    for (int64_t n = random.integer(1, 6); n > 0; --n) {
      text.push_back(static_cast<int32_t>(random.integer(0, 5)));
    }
    const int64_t max_drafts = random.integer(0, 6);
    ASSERT_EQ(draft(drafter, text, max_drafts, id), expected(text, max_drafts));
  }
}

}  // namespace
}  // namespace braid

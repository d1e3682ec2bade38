#include "sampling/token_history.h"

#include <gtest/gtest.h>

#include <map>

namespace braid {
namespace {

TEST(TokenHistory, CountsOutputApartFromThePrompt) {
  TokenHistory history;
  EXPECT_TRUE(history.entries().empty());
  history.add_prompt(std::vector<int32_t>{5, 7, 5});
  for (const int32_t token : {7, 9, 9, 9}) history.add_output(token);
  std::map<int32_t, int32_t> counts;
  for (const auto& [token, count] : history.entries()) counts[token] = count;
  EXPECT_EQ(counts, (std::map<int32_t, int32_t>{{5, 0}, {7, 1}, {9, 3}}));
}

}  // namespace
}  // namespace braid

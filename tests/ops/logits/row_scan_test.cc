#include "ops/logits/row_scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/fresh_seed.h"

namespace braid {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Few distinct values, so that ties and rows without any finite value are common.
std::vector<float> random_row(testing::FreshRandom& random) {
  const std::vector<float> all = {0, -0.0f, 1, -1, 2, 1e-45f, -kInfinity, kInfinity, std::nanf("")};
  const bool mostly_nothing = random.coin(0.2);
  std::vector<float> row(static_cast<size_t>(random.integer(0, 300)));
  for (float& x : row) x = mostly_nothing && random.coin(0.99) ? -kInfinity : random.pick(all);
  return row;
}

TEST(RowScan, ArgmaxEqualsAPlainLoop) {
  testing::FreshRandom random;
  for (int round = 0; round < 2000; ++round) {
    const std::vector<float> row = random_row(random);
    int32_t expected = -1;
    for (size_t i = 0; i < row.size(); ++i) {
      if (row[i] > (expected < 0 ? -kInfinity : row[expected])) expected = static_cast<int32_t>(i);
    }
    ASSERT_EQ(argmax(row), expected);
  }
}

TEST(RowScan, VisitsWhatIsAboveTheThresholdInOrder) {
  testing::FreshRandom random;
  for (int round = 0; round < 2000; ++round) {
    const std::vector<float> row = random_row(random);
    const float threshold = random.pick(std::vector<float>{-kInfinity, -1, 0, 1});
    std::vector<int32_t> expected;
    for (size_t i = 0; i < row.size(); ++i) {
      if (row[i] > threshold) expected.push_back(static_cast<int32_t>(i));
    }
    std::vector<int32_t> visited;
    for_each_above(row, threshold, [&](int32_t index, float value) {
      visited.push_back(index);
      ASSERT_EQ(value, row[index]);
    });
    ASSERT_EQ(visited, expected);
  }
}

TEST(RowScan, SanitisedRowsHoldNoNanAndNoPlusInfinity) {
  testing::FreshRandom random;
  for (int round = 0; round < 500; ++round) {
    const std::vector<float> row = random_row(random);
    std::vector<float> clean(row.size());
    sanitise(row, clean.data());
    for (size_t i = 0; i < row.size(); ++i) {
      const float expected = std::isnan(row[i])    ? -kInfinity
                             : row[i] == kInfinity ? std::numeric_limits<float>::max()
                                                   : row[i];
      ASSERT_EQ(clean[i], expected) << row[i];
    }
  }
}

}  // namespace
}  // namespace braid

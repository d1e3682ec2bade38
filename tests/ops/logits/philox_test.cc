#include "ops/logits/philox.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace braid {
namespace {

using Block = std::array<uint32_t, 4>;

// Known answers published with Random123 (tests/kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, EveryPartOfTheKeyCounts) {
  const uint64_t high = uint64_t{1} << 40;
  std::set<double> numbers;
  size_t count = 0;
  for (const SamplingKey& key :
       {SamplingKey{}, SamplingKey{.seed = 1}, SamplingKey{.seed = high}, SamplingKey{.request = 1},
        SamplingKey{.request = high}, SamplingKey{.position = 1}, SamplingKey{.position = 1u << 31},
        SamplingKey{.seed = 1, .request = 1}}) {
    UniformByToken uniform(key);
    for (const int32_t token : {0, 1, 2, 3, 4, 262143}) {
      numbers.insert(uniform(token));
      ++count;
    }
  }
  EXPECT_EQ(numbers.size(), count);
  EXPECT_GT(*numbers.begin(), 0);
  EXPECT_LT(*numbers.rbegin(), 1);
}

TEST(Philox, NumbersOfTokensDoNotDependOnTheOrder) {
  const SamplingKey key{.seed = 5, .request = 6, .position = 7};
  UniformByToken ascending(key), any(key);
  std::vector<double> numbers;
  for (int32_t token = 0; token < 40; ++token) numbers.push_back(ascending(token));
  for (int32_t token = 39; token >= 0; token -= 3) EXPECT_EQ(any(token), numbers[token]);
}

}  // namespace
}  // namespace braid

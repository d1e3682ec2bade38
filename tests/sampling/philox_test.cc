#include "sampling/philox.h"

#include <gtest/gtest.h>

#include <set>

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
  const std::set<double> numbers = {
      uniform({}),
      uniform({.seed = 1}),
      uniform({.seed = high}),
      uniform({.request = 1}),
      uniform({.request = high}),
      uniform({.position = 1}),
      uniform({.position = high}),
      uniform({.seed = 1, .request = 1}),
  };
  EXPECT_EQ(numbers.size(), 8u);
  for (const double x : numbers) {
    EXPECT_GE(x, 0);
    EXPECT_LT(x, 1);
  }
}

}  // namespace
}  // namespace braid

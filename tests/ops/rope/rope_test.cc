#include "ops/rope/rope.h"

#include <cmath>

#include "ops/op_test.h"
#include "reference/rope.h"

namespace braid {
namespace {

class RopeTest : public OpTest {};

TEST_P(RopeTest, TablesAreAccurateAtEveryPosition) {
  const std::vector<int32_t> positions = {0, 1, 2, 3, 1023, 1024, 131071, 262143, 1 << 20};
  const int64_t tokens = static_cast<int64_t>(positions.size());
  Tensor frequencies(DType::kF32, {67}, op_test_device);
  for (int64_t i = 0; i < 67; ++i) {
    frequencies.data<float>()[i] = i == 66 ? 0 : static_cast<float>(std::pow(1e4, -i / 67.0));
  }
  PaddedTensor cos({tokens, 67}, 3), sin({tokens, 67}, 0);
  rope_tables(stream, positions, frequencies, cos, sin);
  EXPECT_TRUE(cos.gaps_untouched());
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < 67; ++i) {
      const float angle = static_cast<float>(positions[t]) * frequencies.data<float>()[i];
      // One unit in the last place below 1, relative for small values.
      const double c = std::cos(double{angle}), s = std::sin(double{angle});
      ASSERT_NEAR(cos.row(t)[i], c, 2 * kUnitRoundoff * std::abs(c)) << positions[t] << ", " << i;
      ASSERT_NEAR(sin.row(t)[i], s, 2 * kUnitRoundoff * std::abs(s)) << positions[t] << ", " << i;
    }
    EXPECT_EQ(cos.row(t)[66], 1);
    EXPECT_EQ(sin.row(t)[66], 0);
  }
}

TEST_P(RopeTest, RotatesThePairsAndLeavesTheRest) {
  struct Case {
    int64_t head_dim, pairs, distance;
  };
  for (const Case& c : {Case{2, 1, 1}, Case{8, 4, 4}, Case{16, 3, 8}, Case{24, 7, 7},
                        Case{64, 32, 32}, Case{66, 33, 33}, Case{128, 9, 64}, Case{512, 64, 256},
                        Case{256, 32, 32}, Case{256, 128, 128}}) {
    for (const int64_t tokens : {0, 1, 3, 9}) {
      const int64_t heads = random.integer(1, 5);
      std::vector<int32_t> positions(tokens);
      for (int32_t& p : positions) p = static_cast<int32_t>(random.integer(0, 1 << 18));
      Tensor frequencies(DType::kF32, {c.pairs}, op_test_device);
      for (float& f : frequencies.view().span<float>()) f = random.uniform(0, 1);
      PaddedTensor x({tokens, heads, c.head_dim}, 3), before({tokens, heads, c.head_dim}, 0);
      before.fill_normal(random);
      x.copy_from(before);
      PaddedTensor cos({tokens, c.pairs}, 1), sin({tokens, c.pairs}, 2);
      rope_tables(stream, positions, frequencies, cos, sin);
      rope(stream, x, cos, sin, c.distance);
      EXPECT_TRUE(x.gaps_untouched());
      std::vector<double> expected(c.head_dim);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t head = 0; head < heads; ++head) {
          const float* from = before.row(t) + head * c.head_dim;
          const float* to = x.row(t) + head * c.head_dim;
          reference::rope(from, c.head_dim, frequencies.data<float>(), c.pairs, c.distance,
                          positions[t], expected.data());
          for (int64_t i = 0; i < c.head_dim; ++i) {
            const bool turns = i < c.pairs || (i >= c.distance && i < c.distance + c.pairs);
            if (!turns) {
              ASSERT_EQ(to[i], from[i]);
              continue;
            }
            const int64_t partner = i < c.pairs ? i + c.distance : i - c.distance;
            // Cosine and sine to 2 units each, two products, one addition.
            const double bound = 5 * kUnitRoundoff * (std::abs(from[i]) + std::abs(from[partner]));
            ASSERT_NEAR(to[i], expected[i], bound) << c.head_dim << ", " << i;
          }
        }
      }
    }
  }
}

TEST_P(RopeTest, DoesNotDependOnThreads) {
  PaddedTensor x({301, 4, 64}, 0), again({301, 4, 64}, 0);
  x.fill_normal(random);
  again.copy_from(x);
  std::vector<int32_t> positions(301);
  for (int32_t i = 0; i < 301; ++i) positions[i] = 7 * i;
  Tensor frequencies(DType::kF32, {32}, op_test_device);
  for (float& f : frequencies.view().span<float>()) f = random.uniform(0, 1);
  PaddedTensor cos({301, 32}, 0), sin({301, 32}, 0), cos1({301, 32}, 0), sin1({301, 32}, 0);
  rope_tables(stream, positions, frequencies, cos, sin);
  rope(stream, x, cos, sin, 32);
  OtherStream other(1);
  rope_tables(other, positions, frequencies, cos1, sin1);
  rope(other, again, cos1, sin1, 32);
  EXPECT_EQ(cos.bits(), cos1.bits());
  EXPECT_EQ(sin.bits(), sin1.bits());
  EXPECT_EQ(x.bits(), again.bits());
}

BRAID_INSTANTIATE_PER_TARGET(RopeTest);

}  // namespace
}  // namespace braid

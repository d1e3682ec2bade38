#include "ops/norm/rms_norm.h"

#include <cmath>

#include "ops/op_test.h"
#include "reference/elementwise.h"
#include "reference/norm.h"

namespace braid {
namespace {

// The largest relative error of an element: the sum of n squares goes through at most n/16 + 8
// additions of positive numbers (16 is the smallest number of running sums), the square root halves
// that and what the mean and epsilon add, and three more roundings follow.
double relative_bound(int64_t width) {
  return ((static_cast<double>(width) / 16 + 8 + 3) / 2 + 4) * kUnitRoundoff;
}

class RmsNormTest : public OpTest {};

TEST_P(RmsNormTest, MatchesReference) {
  for (const int64_t rows : {0, 1, 2, 3, 7, 8, 9}) {
    if (small_tests() && rows != 1 && rows != 9) continue;
    for (const int64_t width : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 256, 2816}) {
      if (small_tests() && width > 1 && width < 31) continue;
      const float epsilon = random.pick({1e-6f, 1e-5f, 0.3f});
      const bool with_weight = random.integer(0, 2) > 0;
      const int64_t gap = random.integer(0, 5);
      PaddedTensor x({rows, width}, gap), y({rows, width}, random.integer(0, 5));
      x.fill_normal(random, random.pick({0.001f, 1.0f, 100.0f}));
      Tensor weight(DType::kF32, {width}, op_test_device);
      for (float& w : weight.view().span<float>()) w = random.uniform(-2, 3);
      const TensorView gains = with_weight ? weight.view() : TensorView();
      rms_norm(stream, x, gains, epsilon, y);
      EXPECT_TRUE(y.gaps_untouched());

      PaddedTensor in_place({rows, width}, gap), residual({rows, width}, 3);
      in_place.copy_from(x);
      rms_norm(stream, in_place, gains, epsilon, in_place);
      EXPECT_EQ(in_place.bits(), y.bits());

      residual.fill_normal(random);
      PaddedTensor sum({rows, width}, 1);
      sum.copy_from(residual);
      add_rms_norm(stream, x, gains, epsilon, sum);
      EXPECT_TRUE(sum.gaps_untouched());

      std::vector<double> expected(width);
      for (int64_t row = 0; row < rows; ++row) {
        reference::rms_norm(x.row(row), with_weight ? weight.data<float>() : nullptr, epsilon,
                            width, expected.data());
        for (int64_t i = 0; i < width; ++i) {
          const double bound = std::abs(expected[i]) * relative_bound(width);
          ASSERT_NEAR(y.row(row)[i], expected[i], bound)
              << rows << " × " << width << ", row " << row << ", element " << i;
          ASSERT_EQ(sum.row(row)[i], residual.row(row)[i] + y.row(row)[i]);
        }
      }
    }
  }
}

TEST_P(RmsNormTest, NormalisesHeads) {
  PaddedTensor x({5, 3, 24}, 7), y({5, 3, 24}, 2);
  x.fill_normal(random);
  rms_norm(stream, x, TensorView(), 1e-6f, y);
  EXPECT_TRUE(y.gaps_untouched());
  std::vector<double> expected(24);
  for (int64_t token = 0; token < 5; ++token) {
    for (int64_t head = 0; head < 3; ++head) {
      reference::rms_norm(x.row(token) + head * 24, nullptr, 1e-6f, 24, expected.data());
      for (int64_t i = 0; i < 24; ++i) {
        ASSERT_NEAR(y.row(token)[head * 24 + i], expected[i],
                    std::abs(expected[i]) * relative_bound(24));
      }
    }
  }
}

TEST_P(RmsNormTest, GatedMatchesReference) {
  for (const int64_t tokens : {0, 1, 3, 8, 40}) {
    for (const int64_t width : {1, 7, 8, 16, 17, 24, 33, 128}) {
      if (small_tests() && (tokens == 1 || (width > 1 && width < 33))) continue;
      const int64_t heads = random.integer(1, 5);
      const float epsilon = random.pick({1e-6f, 0.3f});
      PaddedTensor x({tokens, heads, width}, 3), gate({tokens, heads, width}, 5);
      PaddedTensor y({tokens, heads, width}, 2);
      x.fill_normal(random, random.pick({0.001f, 1.0f, 100.0f}));
      gate.fill_normal(random, random.pick({1.0f, 50.0f}));
      Tensor weight(DType::kF32, {width}, op_test_device);
      for (float& w : weight.view().span<float>()) w = random.uniform(-2, 3);
      gated_rms_norm(stream, x, gate, weight, epsilon, y);
      EXPECT_TRUE(y.gaps_untouched());
      std::vector<double> normed(width);
      for (int64_t token = 0; token < tokens; ++token) {
        for (int64_t i = 0; i < heads * width; ++i) {
          if (i % width == 0) {
            reference::rms_norm(x.row(token) + i, weight.data<float>(), epsilon, width,
                                normed.data());
          }
          const double norm = normed[i % width];
          const double expected = norm * reference::silu(gate.row(token)[i]);
          // silu has 4 units for its exponential, a sum and a division, and ends in zero below
          // −88; the product is one more.
          ASSERT_NEAR(y.row(token)[i], expected,
                      std::abs(expected) * (relative_bound(width) + 8 * kUnitRoundoff) +
                          std::abs(norm) * 1e-36 + 0x1p-147);
        }
      }
      PaddedTensor in_place({tokens, heads, width}, 0);
      in_place.copy_from(x);
      gated_rms_norm(stream, in_place, gate, weight, epsilon, in_place);
      EXPECT_EQ(in_place.bits(), y.bits());
      for (const int threads : {1, 3}) {
        OtherStream other_stream(threads);
        PaddedTensor again({tokens, heads, width}, 0);
        gated_rms_norm(other_stream, x, gate, weight, epsilon, again);
        EXPECT_EQ(again.bits(), y.bits()) << threads << " threads";
      }
    }
  }
}

TEST_P(RmsNormTest, RowsDoNotDependOnNeighboursOrThreads) {
  PaddedTensor x({67, 2816}, 0), y({67, 2816}, 0);
  x.fill_normal(random);
  rms_norm(stream, x, TensorView(), 1e-6f, y);
  for (const int threads : {1, 3}) {
    OtherStream other_stream(threads);
    PaddedTensor again({67, 2816}, 0);
    rms_norm(other_stream, x, TensorView(), 1e-6f, again);
    EXPECT_EQ(again.bits(), y.bits()) << threads << " threads";
  }
  for (const int64_t row : {0, 13, 66}) {
    PaddedTensor alone({1, 2816}, 0);
    rms_norm(stream, x.view().rows(row, 1), TensorView(), 1e-6f, alone);
    EXPECT_TRUE(std::equal(alone.row(0), alone.row(0) + 2816, y.row(row))) << "row " << row;
  }
}

BRAID_INSTANTIATE_PER_TARGET(RmsNormTest);

}  // namespace
}  // namespace braid

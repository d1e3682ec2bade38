#include "ops/elementwise/elementwise.h"

#include <cmath>

#include "ops/op_test.h"
#include "reference/elementwise.h"

namespace braid {
namespace {

class ElementwiseTest : public OpTest {
 protected:
  static std::vector<int64_t> widths() {
    if (small_tests()) return {1, 7, 16, 33, 68};
    std::vector<int64_t> all;
    for (int64_t width = 1; width <= 70; width += width < 20 ? 1 : 7) all.push_back(width);
    return all;
  }
  // Values of every size, both signs, zeros, and (on request) the ends of the range.
  void fill(const PaddedTensor& x, bool extremes) {
    for (int64_t i = 0; i < x.view().dim(0); ++i) {
      for (int64_t j = 0; j < x.row_elements(); ++j) {
        switch (random.integer(0, extremes ? 9 : 6)) {
          case 0:
            x.row(i)[j] = random.pick({0.0f, -0.0f, 1e-30f, -1e-40f});
            break;
          case 7:
            x.row(i)[j] = random.pick({1e30f, -1e30f, 1e36f, -1e36f});
            break;
          default:
            x.row(i)[j] = random.normal(random.pick({1e-3f, 0.3f, 1.0f, 6.0f, 40.0f}));
        }
      }
    }
  }
};

// u = 2·√(2/π)·(x + 0.044715·x³), of which gelu takes the exponential.
double gelu_exponent(double x) { return 1.5957691216057308 * (x + 0.044715 * x * x * x); }

TEST_P(ElementwiseTest, Gelu) {
  for (const int64_t rows : {0, 1, 2, 3, 7, 8, 9}) {
    if (small_tests() && rows != 1 && rows != 9) continue;
    for (const int64_t width : widths()) {
      PaddedTensor gate({rows, width}, 2), up({rows, width}, 1), y({rows, width}, 3);
      fill(gate, true);
      fill(up, false);
      gelu_tanh_mul(stream, gate, up, y);
      EXPECT_TRUE(y.gaps_untouched());
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < width; ++j) {
          const double x = gate.row(i)[j];
          const double expected = reference::gelu_tanh(x) * up.row(i)[j];
          // The exponent has 4 roundings and passes its error on times its size (it ends where the
          // exponential leaves the range of float32, 1e-38); the reference cancels below zero.
          const double exponent = std::min(std::abs(gelu_exponent(x)), 90.0);
          const double bound =
              std::abs(expected) * (4 * exponent + 10) * kUnitRoundoff +
              std::abs(up.row(i)[j]) * (std::min(std::abs(x), 20.0) * 0x1p-52 + 1e-36) +
              0x1p-147;  // and a few steps between subnormals
          ASSERT_NEAR(y.row(i)[j], expected, bound) << "x = " << x << ", up " << up.row(i)[j];
        }
      }
      PaddedTensor in_place({rows, width}, 0);
      in_place.copy_from(gate);
      gelu_tanh_mul(stream, in_place, up, in_place);
      EXPECT_EQ(in_place.bits(), y.bits());
      in_place.copy_from(up);
      gelu_tanh_mul(stream, gate, in_place, in_place);
      EXPECT_EQ(in_place.bits(), y.bits());
    }
  }
}

TEST_P(ElementwiseTest, GeluOfNanIsNan) {
  PaddedTensor gate({1, 3}, 0), up({1, 3}, 0), y({1, 3}, 0);
  up.fill_normal(random);
  gate.row(0)[0] = 1;
  gate.row(0)[2] = std::numeric_limits<float>::infinity();
  gelu_tanh_mul(stream, gate, up, y);
  EXPECT_FALSE(std::isnan(y.row(0)[0]));
  EXPECT_TRUE(std::isnan(y.row(0)[1]));
  EXPECT_TRUE(std::isinf(y.row(0)[2]));
}

// sigmoid and silu: 4 units for the exponential, a sum, a division and the product; where the
// exponential overflows they end in zero instead of something below 88·e⁻⁸⁸.
constexpr double kGateUnits = 8;
constexpr double kGateUnderflow = 1e-36;

TEST_P(ElementwiseTest, SiluAndSigmoid) {
  for (const int64_t rows : {0, 1, 2, 3, 7, 8, 9}) {
    if (small_tests() && rows != 1 && rows != 9) continue;
    for (const int64_t width : widths()) {
      PaddedTensor gate({rows, width}, 2), up({rows, width}, 1), y({rows, width}, 3);
      PaddedTensor scaled({rows, width}, 4);
      fill(gate, true);
      fill(up, false);
      silu_mul(stream, gate, up, y);
      scaled.copy_from(up);
      sigmoid_mul(stream, scaled, gate);
      EXPECT_TRUE(y.gaps_untouched() && scaled.gaps_untouched());
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < width; ++j) {
          const double x = gate.row(i)[j], u = up.row(i)[j];
          const double lost = kGateUnderflow * std::abs(u) + 0x1p-147;
          const double silu = reference::silu(x) * u, sigmoid = reference::sigmoid(x) * u;
          ASSERT_NEAR(y.row(i)[j], silu, std::abs(silu) * kGateUnits * kUnitRoundoff + lost)
              << "x = " << x << ", up " << u;
          ASSERT_NEAR(scaled.row(i)[j], sigmoid,
                      std::abs(sigmoid) * kGateUnits * kUnitRoundoff + lost)
              << "x = " << x << ", times " << u;
        }
      }
      PaddedTensor in_place({rows, width}, 0);
      in_place.copy_from(gate);
      silu_mul(stream, in_place, up, in_place);
      EXPECT_EQ(in_place.bits(), y.bits());
      in_place.copy_from(up);
      silu_mul(stream, gate, in_place, in_place);
      EXPECT_EQ(in_place.bits(), y.bits());
    }
  }
}

TEST_P(ElementwiseTest, GatesAtTheEndsOfTheRange) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  PaddedTensor gate({1, 5}, 0), ones({1, 5}, 0), silu({1, 5}, 0);
  const float gates[] = {kInfinity, -kInfinity, 3e38f, -3e38f, kNan};
  std::copy_n(gates, 5, gate.row(0));
  std::fill_n(ones.row(0), 5, 1.0f);
  silu_mul(stream, gate, ones, silu);
  EXPECT_EQ(silu.row(0)[0], kInfinity);
  EXPECT_EQ(silu.row(0)[2], 3e38f);
  EXPECT_EQ(silu.row(0)[3], 0);
  EXPECT_TRUE(std::isnan(silu.row(0)[4]));
  sigmoid_mul(stream, ones, gate);
  EXPECT_EQ(ones.row(0)[0], 1);
  EXPECT_EQ(ones.row(0)[1], 0);
  EXPECT_EQ(ones.row(0)[2], 1);
  EXPECT_EQ(ones.row(0)[3], 0);
  EXPECT_TRUE(std::isnan(ones.row(0)[4]));
}

TEST_P(ElementwiseTest, AddSigmoidScaled) {
  for (const int64_t rows : {0, 1, 2, 3, 7, 8, 9}) {
    if (small_tests() && rows != 1 && rows != 9) continue;
    for (const int64_t width : widths()) {
      PaddedTensor x({rows, width}, 2), y({rows, width}, 1), gate({rows, 1}, 3);
      PaddedTensor sum({rows, width}, 0);
      x.fill_normal(random);
      y.fill_normal(random);
      gate.fill_normal(random, 10);
      sum.copy_from(x);
      add_sigmoid_scaled(stream, sum, y, gate);
      EXPECT_TRUE(sum.gaps_untouched());
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < width; ++j) {
          const double term = reference::sigmoid(gate.row(i)[0]) * y.row(i)[j];
          const double expected = x.row(i)[j] + term;
          // The sigmoid, the product (if apart) and the sum round.
          ASSERT_NEAR(sum.row(i)[j], expected,
                      (2 * std::abs(term) + std::abs(expected)) * 1.01 * kUnitRoundoff);
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, Softcap) {
  for (const float cap : {30.0f, 50.0f, 0.7f}) {
    for (const int64_t rows : {0, 1, 3, 8}) {
      for (const int64_t width : widths()) {
        PaddedTensor x({rows, width}, 2), y({rows, width}, 1);
        fill(x, true);
        y.copy_from(x);
        softcap(stream, y, cap);
        EXPECT_TRUE(y.gaps_untouched());
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < width; ++j) {
            const double expected = reference::softcap(x.row(i)[j], cap);
            // 8 units (4 ulp) for tanh, the division and the product; subnormals lose a few steps.
            ASSERT_NEAR(y.row(i)[j], expected, std::abs(expected) * 11 * kUnitRoundoff + 1e-43)
                << "x = " << x.row(i)[j];
            ASSERT_EQ(std::signbit(y.row(i)[j]), std::signbit(x.row(i)[j]));
            ASSERT_LE(std::abs(y.row(i)[j]), cap);
          }
        }
      }
    }
  }
  PaddedTensor ends({1, 3}, 0);
  ends.row(0)[0] = std::numeric_limits<float>::infinity();
  ends.row(0)[1] = -ends.row(0)[0];
  softcap(stream, ends, 30);
  EXPECT_EQ(ends.row(0)[0], 30);
  EXPECT_EQ(ends.row(0)[1], -30);
  EXPECT_TRUE(std::isnan(ends.row(0)[2]));
}

// Every thousandth float32 in order, so that each stretch of the approximation is met.
TEST_P(ElementwiseTest, SoftcapIsAccurateOverTheWholeRange) {
  std::vector<float> inputs;
  for (uint32_t bits = static_cast<uint32_t>(random.integer(0x00800000, 0x00801000));
       bits < 0x42000000; bits += 4093) {
    inputs.push_back(std::bit_cast<float>(bits));
  }
  PaddedTensor y({1, static_cast<int64_t>(inputs.size())}, 0);
  std::copy(inputs.begin(), inputs.end(), y.row(0));
  softcap(stream, y, 1);
  double worst = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const double expected = std::tanh(double{inputs[i]});
    worst = std::max(worst, std::abs(y.row(0)[i] - expected) / expected);
  }
  EXPECT_LE(worst, 8 * kUnitRoundoff);  // 4 ulp
}

TEST_P(ElementwiseTest, AddAndScale) {
  for (const int64_t rows : {0, 1, 2, 3, 7, 8, 9}) {
    if (small_tests() && rows != 1 && rows != 9) continue;
    for (const int64_t width : widths()) {
      PaddedTensor x({rows, width}, 2), y({rows, width}, 1), sum({rows, width}, 4);
      PaddedTensor scaled({rows, width}, 5);
      x.fill_normal(random);
      y.fill_normal(random);
      sum.copy_from(x);
      scaled.copy_from(x);
      add(stream, sum, y);
      const float factor = random.uniform(-3, 3);
      scale(stream, scaled, factor);
      EXPECT_TRUE(sum.gaps_untouched() && scaled.gaps_untouched());
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < width; ++j) {
          ASSERT_EQ(sum.row(i)[j], x.row(i)[j] + y.row(i)[j]);
          ASSERT_EQ(scaled.row(i)[j], x.row(i)[j] * factor);
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, GatherRows) {
  PaddedTensor x({9, 37}, 2);
  x.fill_normal(random);
  for (const int64_t count : {0, 1, 8, 40}) {
    std::vector<int32_t> rows(count);
    for (int32_t& row : rows) row = static_cast<int32_t>(random.integer(0, 8));
    PaddedTensor y({count, 37}, 3);
    gather_rows(stream, x, rows, y);
    EXPECT_TRUE(y.gaps_untouched());
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_TRUE(std::equal(y.row(i), y.row(i) + 37, x.row(rows[i])));
    }
  }
}

// Wide rows are shared by threads; where the cut is must not show.
TEST_P(ElementwiseTest, WideRowsDoNotDependOnThreads) {
  constexpr int64_t kWidth = 70001;
  PaddedTensor x({2, kWidth}, 1), up({2, kWidth}, 0);
  x.fill_normal(random, 3);
  up.fill_normal(random);
  std::vector<std::vector<uint32_t>> results;
  for (const int threads : {1, 2, 3}) {
    OtherStream other(threads);
    PaddedTensor y({2, kWidth}, 2), capped({2, kWidth}, 0), sum({2, kWidth}, 0);
    gelu_tanh_mul(other, x, up, y);
    EXPECT_TRUE(y.gaps_untouched());
    capped.copy_from(x);
    softcap(other, capped, 30);
    add(other, capped, y);
    scale(other, capped, 1.5f);
    silu_mul(other, up, capped, capped);
    sigmoid_mul(other, capped, x);
    PaddedTensor gate({2, 1}, 0);
    gate.row(0)[0] = 0.5f;
    gate.row(1)[0] = -2;
    add_sigmoid_scaled(other, capped, up, gate);
    const std::vector<int32_t> rows = {1, 0};
    gather_rows(other, capped, rows, sum);
    results.push_back(sum.bits());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

BRAID_INSTANTIATE_PER_TARGET(ElementwiseTest);

}  // namespace
}  // namespace braid

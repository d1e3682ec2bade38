#include "ops/linear/cuda/product_choice.h"
#include "ops/linear/linear.h"
#include "ops/linear/random_weight.h"
#include "ops/op_test.h"
#include "reference/linear.h"

namespace braid {
namespace {

// Small matrices of bfloat16 with few tokens: routers, the gates of heads.
class FewRowsTest : public OpTest {
 protected:
  // Of inputs that are bfloat16 already: the CPU may add in any order, tensor cores may cut off.
  static double bound(int64_t cols) {
    return static_cast<double>(cols + 1) * 2 * kUnitRoundoff * 1.01;
  }
  PaddedTensor rounded_rows(int64_t tokens, int64_t cols) {
    PaddedTensor x({tokens, cols}, random.integer(0, 3));
    x.fill_normal(random);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t c = 0; c < cols; ++c) x.row(t)[c] = to_float(to_bfloat16(x.row(t)[c]));
    }
    return x;
  }
};

TEST_P(FewRowsTest, MatchReferenceAndDoNotDependOnCompany) {
  // A table may take another path from some number of tokens on.
  const cuda::ProductTable constants;
  const cuda::ProductTableScope scope(constants);
  for (const int64_t cols : {8, 32, 40, 264, 2048, 2816, 3848, 4096}) {
    if (small_tests() && cols != 40 && cols != 264 && cols != 3848) continue;
    for (const int64_t rows : {1, 7, 8, 9, 64, 128, 512}) {
      if (small_tests() && rows != 9 && rows != 128 && rows != 512) continue;
      if (rows == 512 && cols != 264 && cols != 2048) continue;
      const Weight w = random_weight(random, FormatId::kBF16, {rows, cols});
      const Weight there = on_target(w);
      const std::vector<float> values = reference::expand(w);
      const PaddedTensor x = rounded_rows(65, cols);
      PaddedTensor alone({1, rows}, 1);
      for (const int64_t tokens : {1, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65}) {
        if (!on_cuda() && tokens != 1 && tokens != 9) continue;  // linear_test.cc has more
        if (small_tests() && tokens != 1 && tokens != 9 && tokens != 33 && tokens != 65) continue;
        SCOPED_TRACE(testing::Message() << rows << " × " << cols << ", " << tokens << " tokens");
        Workspace::Scope scope(workspace);
        PaddedTensor y({tokens, rows}, 3);
        linear(stream, there,
               prepare_linear_input(stream, workspace, x.view().rows(0, tokens),
                                    ActivationPrecision::kBF16),
               y);
        EXPECT_TRUE(y.gaps_untouched());
        if (tokens == 1) {
          alone.copy_from(y);
          // In front of many weights the next kernel may begin earlier.
          PaddedTensor in_front({1, rows}, 3);
          linear_in_front(stream, there,
                          prepare_linear_input(stream, workspace, x.view().rows(0, 1),
                                               ActivationPrecision::kBF16),
                          in_front, int64_t{1} << 30);
          EXPECT_EQ(in_front.bits(), alone.bits());
        }
        const int64_t t = random.integer(0, tokens - 1);
        for (int64_t r = 0; r<rows; r += rows> 64 ? random.integer(1, 13) : 1) {
          if (tokens <= 64) {
            ASSERT_EQ(std::bit_cast<uint32_t>(y.row(0)[r]),
                      std::bit_cast<uint32_t>(alone.row(0)[r]))
                << "row " << r;
          }
          double sum = 0, size = 0;
          for (int64_t c = 0; c < cols; ++c) {
            const double term = double{values[r * cols + c]} * x.row(t)[c];
            sum += term;
            size += std::fabs(term);
          }
          ASSERT_NEAR(y.row(t)[r], sum, bound(cols) * size) << "token " << t << ", row " << r;
        }
      }
    }
  }
}

// A deterministic stream takes them for any number of tokens.
TEST_P(FewRowsTest, ManyTokensOfADeterministicStream) {
  if (!on_cuda()) GTEST_SKIP() << "for devices";
  stream.cuda().set_deterministic(true);
  const int64_t cols = random.pick<int64_t>({40, 264, 2048, 3848}), rows = random.integer(1, 130);
  const int64_t most = small_tests() ? 70 : 200;
  const Weight w = random_weight(random, FormatId::kBF16, {rows, cols});
  const Weight there = on_target(w);
  const std::vector<float> values = reference::expand(w);
  const PaddedTensor x = rounded_rows(most, cols);
  const auto multiply = [&](int64_t first, int64_t tokens, PaddedTensor& y) {
    Workspace::Scope scope(workspace);
    linear(stream, there,
           prepare_linear_input(stream, workspace, x.view().rows(first, tokens),
                                ActivationPrecision::kBF16),
           y);
    EXPECT_TRUE(y.gaps_untouched());
  };
  PaddedTensor all({most, rows}, 2);
  multiply(0, most, all);
  for (const int64_t tokens : {1, 2, 9, 17, 33, 64, 65}) {
    const int64_t first = random.integer(0, most - tokens);
    PaddedTensor some({tokens, rows}, 1);
    multiply(first, tokens, some);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t r = 0; r < rows; ++r) {
        ASSERT_EQ(std::bit_cast<uint32_t>(some.row(t)[r]),
                  std::bit_cast<uint32_t>(all.row(first + t)[r]))
            << tokens << " tokens, row " << r;
      }
    }
  }
  for (const int64_t t : {int64_t{0}, int64_t{63}, int64_t{64}, most - 1}) {
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0, size = 0;
      for (int64_t c = 0; c < cols; ++c) {
        const double term = double{values[r * cols + c]} * x.row(t)[c];
        sum += term;
        size += std::fabs(term);
      }
      ASSERT_NEAR(all.row(t)[r], sum, bound(cols) * size) << "token " << t << ", row " << r;
    }
  }
}

BRAID_INSTANTIATE_PER_TARGET(FewRowsTest);

}  // namespace
}  // namespace braid

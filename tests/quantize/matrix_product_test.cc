#include "quantize/matrix_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/cpu_features.h"
#include "quantize/cholesky.h"
#include "support/fresh_seed.h"

namespace braid {
namespace {

template <typename T>
class MatrixProductTest : public ::testing::Test {};
using Numbers = ::testing::Types<float, double>;
TYPED_TEST_SUITE(MatrixProductTest, Numbers);

template <typename T>
std::vector<T> normal(int64_t count, testing::FreshRandom& random) {
  std::normal_distribution<T> distribution;
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) value = distribution(random.engine());
  return values;
}

TYPED_TEST(MatrixProductTest, EqualsTheSumOfProducts) {
  using T = TypeParam;
  testing::FreshRandom random;
  for (const Isa isa : supported_isas()) {
    force_isa(isa);
    for (int round = 0; round < 6; ++round) {
      ThreadPool pool({.num_threads = static_cast<int>(random.integer(1, 3))});
      const int64_t rows = random.integer(1, 130), cols = random.integer(1, 150);
      const int64_t depth = random.integer(1, 600), padding = random.integer(0, 5);
      const bool a_by_columns = random.coin(), b_by_columns = random.coin();
      const auto a = normal<T>(rows * depth, random), b = normal<T>(depth * cols, random);
      const int64_t c_stride = cols + padding;
      auto c = normal<T>(rows * c_stride, random);
      const auto before = c;
      MatrixProduct<T> product{.rows = rows, .cols = cols, .depth = depth, .a = a.data()};
      product.a_row_stride = a_by_columns ? 1 : depth;
      product.a_depth_stride = a_by_columns ? rows : 1;
      product.b = b.data();
      product.b_depth_stride = b_by_columns ? 1 : cols;
      product.b_col_stride = b_by_columns ? depth : 1;
      product.c = c.data();
      product.c_stride = c_stride;
      product.alpha = T(-0.5);
      add_product(pool, product);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < c_stride; ++j) {
          if (j >= cols) {
            ASSERT_EQ(c[i * c_stride + j], before[i * c_stride + j]);
            continue;
          }
          long double sum = 0, size = std::fabs(before[i * c_stride + j]);
          for (int64_t k = 0; k < depth; ++k) {
            const long double term =
                static_cast<long double>(a[i * product.a_row_stride + k * product.a_depth_stride]) *
                b[k * product.b_depth_stride + j * product.b_col_stride];
            sum += term;
            size += std::fabs(term);
          }
          const long double bound = (depth + 4) * std::numeric_limits<T>::epsilon() / 2 * size;
          ASSERT_NEAR(static_cast<double>(c[i * c_stride + j]),
                      static_cast<double>(before[i * c_stride + j] - sum / 2),
                      static_cast<double>(bound))
              << isa_name(isa) << " " << i << "," << j << " of " << rows << "x" << cols << "x"
              << depth;
        }
      }
    }
  }
  force_isa(supported_isas().back());
}

TYPED_TEST(MatrixProductTest, HasTheSameBitsForAnyThreadsAndParts) {
  using T = TypeParam;
  testing::FreshRandom random;
  const int64_t n = random.integer(200, 400), depth = random.integer(1, 300);
  const auto x = normal<T>(n * depth, random);
  std::vector<std::vector<T>> results;
  using Part = typename MatrixProduct<T>::Part;
  for (const int threads : {1, 3}) {
    ThreadPool pool({.num_threads = threads});
    for (const Part part : {Part::kAll, Part::kUpper, Part::kLower}) {
      std::vector<T>& c = results.emplace_back(static_cast<size_t>(n * n));
      add_product(pool, MatrixProduct<T>{.rows = n,
                                         .cols = n,
                                         .depth = depth,
                                         .a = x.data(),
                                         .a_row_stride = 1,
                                         .a_depth_stride = n,
                                         .b = x.data(),
                                         .b_depth_stride = n,
                                         .c = c.data(),
                                         .c_stride = n,
                                         .part = part});
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          if (part == Part::kUpper ? j < i : part == Part::kLower && j > i) continue;
          ASSERT_EQ(c[i * n + j], results[0][i * n + j]) << i << "," << j;
        }
      }
    }
  }
}

// Well conditioned: ‖A‖ ‖A⁻¹‖ stays near the ratio of rows to columns of what it is made of.
std::vector<double> positive_matrix(int64_t n, testing::FreshRandom& random) {
  const auto x = normal<double>(2 * n * n, random);
  std::vector<double> a(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t t = 0; t < 2 * n; ++t) a[i * n + j] += x[t * n + i] * x[t * n + j] / (2.0 * n);
    }
  }
  return a;
}

TEST(Cholesky, FactorTimesItsTransposeIsTheMatrix) {
  testing::FreshRandom random;
  ThreadPool pool({.num_threads = 2});
  for (const int64_t n :
       {int64_t{1}, int64_t{128}, random.integer(2, 127), random.integer(129, 400)}) {
    const std::vector<double> a = positive_matrix(n, random);
    std::vector<double> l = a;
    ASSERT_TRUE(factor_cholesky(pool, n, l.data()));
    double trace = 0;
    for (int64_t i = 0; i < n; ++i) trace += a[i * n + i];
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        double sum = 0;
        for (int64_t k = 0; k <= j; ++k) sum += l[i * n + k] * l[j * n + k];
        // Backward error: a small multiple of n · ε · √(a_ii a_jj).
        const double bound =
            4.0 * static_cast<double>(n) * 1.2e-16 * std::sqrt(a[i * n + i] * a[j * n + j]);
        ASSERT_NEAR(sum, a[i * n + j], bound) << n << ": " << i << "," << j;
      }
    }
  }
}

TEST(Cholesky, InverseTimesTheFactorIsOne) {
  testing::FreshRandom random;
  ThreadPool pool({.num_threads = 2});
  for (const int64_t n :
       {int64_t{1}, int64_t{128}, random.integer(2, 127), random.integer(129, 500)}) {
    std::vector<double> l = positive_matrix(n, random);
    ASSERT_TRUE(factor_cholesky(pool, n, l.data()));
    std::vector<double> inverse = l;
    invert_lower(pool, n, inverse.data());
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        double sum = 0, size = 0;
        for (int64_t k = j; k <= i; ++k) {
          sum += l[i * n + k] * inverse[k * n + j];
          size += std::fabs(l[i * n + k] * inverse[k * n + j]);
        }
        // The products of the recursion: condition (below 100 here) times n · ε.
        ASSERT_NEAR(sum, i == j ? 1 : 0, 100 * static_cast<double>(n) * 1.2e-16 * (1 + size));
      }
    }
  }
}

TEST(Cholesky, RefusesWhatIsNotPositive) {
  ThreadPool pool({.num_threads = 1});
  std::vector<double> indefinite = {1, 2, 2, 1};
  EXPECT_FALSE(factor_cholesky(pool, 2, indefinite.data()));
  std::vector<double> nan = {std::nan(""), 0, 0, 1};
  EXPECT_FALSE(factor_cholesky(pool, 2, nan.data()));
}

}  // namespace
}  // namespace braid

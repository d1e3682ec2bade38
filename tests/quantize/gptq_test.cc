#include "quantize/gptq.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "quant/group_format.h"
#include "reference/gptq.h"
#include "support/fresh_seed.h"

namespace braid {
namespace {

// Inputs whose neighbours are alike, some larger than others.
std::vector<float> correlated_inputs(int64_t count, int64_t cols, testing::FreshRandom& random) {
  std::normal_distribution<float> normal;
  std::vector<float> size(static_cast<size_t>(cols));
  for (float& s : size) s = std::exp(normal(random.engine()));
  std::vector<float> x(static_cast<size_t>(count * cols));
  for (int64_t t = 0; t < count; ++t) {
    float last = normal(random.engine());
    for (int64_t c = 0; c < cols; ++c) {
      last = 0.8f * last + 0.6f * normal(random.engine());
      x[t * cols + c] = size[c] * last;
    }
  }
  return x;
}
std::vector<float> weights(int64_t count, testing::FreshRandom& random) {
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> w(static_cast<size_t>(count));
  for (float& value : w) value = normal(random.engine());
  return w;
}
Hessian hessian_of(ThreadPool& pool, const std::vector<float>& x, int64_t cols) {
  Hessian hessian(cols);
  hessian.add(pool, x.data(), static_cast<int64_t>(x.size()) / cols, cols);
  hessian.finish(pool);
  return hessian;
}

TEST(Hessian, IsTheMeanOfOuterProducts) {
  testing::FreshRandom random;
  ThreadPool pool({.num_threads = 2});
  const int64_t cols = random.integer(1, 200), count = random.integer(1, 700);
  const std::vector<float> x = correlated_inputs(count, cols, random);
  // In pieces, of rows that lie apart.
  const int64_t stride = cols + random.integer(0, 3);
  std::vector<float> spread(static_cast<size_t>(count * stride), 1e9f);
  for (int64_t t = 0; t < count; ++t) {
    std::copy_n(x.begin() + t * cols, cols, spread.begin() + t * stride);
  }
  Hessian hessian(cols);
  for (int64_t begin = 0; begin < count;) {
    const int64_t piece = std::min(count - begin, random.integer(1, 300));
    hessian.add(pool, spread.data() + begin * stride, piece, stride);
    begin += piece;
  }
  hessian.finish(pool);
  EXPECT_EQ(hessian.num_inputs(), count);
  const std::vector<double> expected = reference::hessian(x, cols);
  for (int64_t i = 0; i < cols; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      const double bound = (static_cast<double>(count) + 4) * 6e-8 *
                           std::sqrt(expected[i * cols + i] * expected[j * cols + j]);
      ASSERT_NEAR(hessian.data()[i * cols + j], expected[i * cols + j], bound) << i << "," << j;
    }
  }
}

// By group: each of 16 columns follows whole, larger columns first, larger groups first.
void check_groups(const Hessian& hessian, const InverseFactor& inverse, ColumnOrder order) {
  std::vector<int32_t> sorted = inverse.order;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) ASSERT_EQ(sorted[i], static_cast<int32_t>(i));
  if (order != ColumnOrder::kByGroup) return;
  double last_sum = std::numeric_limits<double>::infinity(), sum = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const int32_t column = inverse.order[i];
    if (i > 0 && column / 16 == inverse.order[i - 1] / 16) {
      ASSERT_GE(hessian.diagonal(inverse.order[i - 1]), hessian.diagonal(column));
    } else if (i > 0) {
      ASSERT_LE(sum, last_sum);
      last_sum = sum;
      sum = 0;
    }
    sum += hessian.diagonal(column);
  }
  ASSERT_LE(sum, last_sum);
}

TEST(Hessian, FactorIsThatOfTheInverse) {
  testing::FreshRandom random;
  ThreadPool pool({.num_threads = 2});
  for (const ColumnOrder order :
       {ColumnOrder::kInPlace, ColumnOrder::kBySize, ColumnOrder::kByGroup}) {
    const int64_t n = random.integer(2, 150);
    const Hessian hessian = hessian_of(pool, correlated_inputs(3 * n, n, random), n);
    const double damping = 0.05;
    const InverseFactor inverse = invert_hessian(pool, hessian, damping, order, 16);
    EXPECT_EQ(inverse.damping, damping);
    double mean = 0;
    for (int64_t i = 0; i < n; ++i) mean += hessian.diagonal(i) / static_cast<double>(n);
    for (int64_t i = 1; i < n && order == ColumnOrder::kBySize; ++i) {
      ASSERT_GE(hessian.diagonal(inverse.order[i - 1]), hessian.diagonal(inverse.order[i]));
    }
    check_groups(hessian, inverse, order);
    // UᵀU·H' = 1: a factor rounded to float32, times what the damping bounds the condition by.
    std::vector<double> damped(static_cast<size_t>(n * n));
    double greatest = 0;
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) {
        damped[i * n + j] = hessian.data()[inverse.order[i] * n + inverse.order[j]];
        sum += std::fabs(damped[i * n + j]);
      }
      damped[i * n + i] += damping * mean;
      greatest = std::max(greatest, sum);
    }
    const double bound = 1e-6 * static_cast<double>(n) * (1 + greatest / (damping * mean));
    std::vector<double> u(inverse.factor.begin(), inverse.factor.end());
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < i; ++j) ASSERT_EQ(u[i * n + j], 0);
    }
    for (int64_t i = 0; i < n; ++i) {
      std::vector<double> row(static_cast<size_t>(n));
      for (int64_t k = 0; k < n; ++k) {
        for (int64_t m = 0; m <= std::min(i, k); ++m) row[k] += u[m * n + i] * u[m * n + k];
      }
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < n; ++k) sum += row[k] * damped[k * n + j];
        ASSERT_NEAR(sum, i == j ? 1 : 0, bound) << i << "," << j;
      }
    }
  }
}

TEST(Hessian, DampingGrowsUntilThereIsAFactor) {
  ThreadPool pool({.num_threads = 1});
  // Two inputs for eight columns.
  const std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1};
  const Hessian hessian = hessian_of(pool, x, 8);
  EXPECT_GT(invert_hessian(pool, hessian, 0, ColumnOrder::kInPlace, 8).damping, 0);
  EXPECT_EQ(invert_hessian(pool, hessian, 0.01, ColumnOrder::kInPlace, 8).damping, 0.01);
}

TEST(Hessian, InputsThatAreNotFiniteAreAnError) {
  ThreadPool pool({.num_threads = 1});
  const Hessian hessian = hessian_of(pool, {1, std::nanf(""), 2, 3}, 2);
  EXPECT_THROW(invert_hessian(pool, hessian, 0.01, ColumnOrder::kBySize, 2), Error);
}

struct Case {
  FormatId format;
  bool per_row;
  ColumnOrder order;
};
class GptqTest : public ::testing::TestWithParam<Case> {};

// Codes equal those of the plain algorithm, which follows where a column could as well be rounded
// the other way.
TEST_P(GptqTest, RoundsAsThePlainAlgorithm) {
  testing::FreshRandom random;
  ThreadPool pool({.num_threads = 2});
  const int64_t rows = 24, cols = 256;
  const std::vector<float> x = correlated_inputs(2 * cols, cols, random);
  const std::vector<float> w = weights(rows * cols, random);
  const Hessian hessian = hessian_of(pool, x, cols);
  const GptqOptions options{.damping = 0.05, .order = GetParam().order};
  const RoundingGrid grid =
      rounding_grid(quant_format(GetParam().format), cols, GetParam().per_row);
  const InverseFactor inverse =
      invert_hessian(pool, hessian, options.damping, options.order, grid.group);
  const RoundedRows rounded = round_gptq(pool, grid, w.data(), rows, hessian, inverse, options);

  std::vector<double> damped(static_cast<size_t>(cols * cols));
  double mean = 0;
  for (int64_t i = 0; i < cols; ++i) mean += hessian.diagonal(i) / static_cast<double>(cols);
  for (int64_t i = 0; i < cols * cols; ++i) damped[i] = hessian.data()[i];
  for (int64_t i = 0; i < cols; ++i) damped[i * cols + i] += options.damping * mean;
  const std::vector<double> full = reference::inverse(damped, cols);

  // By float32 roundings of one update a column, of the weight and of what it moves by: these are
  // within the codes' range.
  const double doubt = 2 * 0x1p-24 * static_cast<double>(cols) * (grid.high - grid.low + 1);
  int64_t doubtful = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> row(w.begin() + r * cols, w.begin() + (r + 1) * cols);
    const std::vector<GroupScale> scales(rounded.scales.begin() + r * rounded.groups,
                                         rounded.scales.begin() + (r + 1) * rounded.groups);
    const std::span codes(rounded.codes.data() + r * cols, static_cast<size_t>(cols));
    const reference::GptqRow expected =
        reference::gptq_row(grid, row, scales, full, inverse.order, codes, doubt);
    for (const int32_t c : inverse.order) {
      ASSERT_EQ(codes[c], expected.codes[c]) << "row " << r << " column " << c;
    }
    doubtful += expected.doubtful;
  }
  // By chance one in 1 / (2 · doubt).
  EXPECT_LT(doubtful, rows * cols / 8);
}

INSTANTIATE_TEST_SUITE_P(Formats, GptqTest,
                         ::testing::Values(Case{FormatId::kW4G128, false, ColumnOrder::kBySize},
                                           Case{FormatId::kW4G128, false, ColumnOrder::kInPlace},
                                           Case{FormatId::kW4G32, false, ColumnOrder::kByGroup},
                                           Case{FormatId::kW4G64Asym, false, ColumnOrder::kByGroup},
                                           Case{FormatId::kW4G32Asym, false, ColumnOrder::kBySize},
                                           Case{FormatId::kW4G128, true, ColumnOrder::kByGroup},
                                           Case{FormatId::kW8C, false, ColumnOrder::kBySize},
                                           Case{FormatId::kQ4_1, false, ColumnOrder::kInPlace}));

TEST(Gptq, LosesLessThanRoundingToNearest) {
  testing::FreshRandom random;
  ThreadPool pool({.num_threads = 2});
  const int64_t rows = 64, cols = 256;
  const std::vector<float> x = correlated_inputs(1024, cols, random);
  const std::vector<float> w = weights(rows * cols, random);
  const Hessian hessian = hessian_of(pool, x, cols);
  for (const ColumnOrder order :
       {ColumnOrder::kInPlace, ColumnOrder::kBySize, ColumnOrder::kByGroup}) {
    for (const bool search : {false, true}) {
      const GptqOptions options{.order = order, .search_scales = search};
      for (const FormatId id : {FormatId::kW4G128, FormatId::kW4G32Asym, FormatId::kW8C}) {
        const RoundingGrid grid = rounding_grid(quant_format(id), cols);
        const InverseFactor inverse =
            invert_hessian(pool, hessian, options.damping, order, grid.group);
        const RoundedRows nearest =
            round_to_nearest(pool, grid, w.data(), rows, cols, nullptr, false);
        const RoundedRows gptq = round_gptq(pool, grid, w.data(), rows, hessian, inverse, options);
        const RoundingError before = rounding_error(pool, grid, w.data(), nearest, hessian);
        const RoundingError after = rounding_error(pool, grid, w.data(), gptq, hessian);
        EXPECT_LT(after.error, before.error) << quant_format(id).name;
        EXPECT_EQ(after.output, before.output);
      }
    }
  }
}

double damped_error(const RoundingGrid& grid, const std::vector<float>& w, const Hessian& hessian,
                    double damping, const RoundedRows& rounded) {
  const int64_t cols = rounded.cols;
  double mean = 0, sum = 0;
  for (int64_t i = 0; i < cols; ++i) mean += hessian.diagonal(i) / static_cast<double>(cols);
  std::vector<double> e(static_cast<size_t>(cols));
  for (int64_t r = 0; r < rounded.rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      e[c] = w[r * cols + c] - value_of(rounded.scales[r * rounded.groups + c / grid.group],
                                        rounded.codes[r * cols + c]);
    }
    for (int64_t i = 0; i < cols; ++i) {
      for (int64_t j = 0; j < cols; ++j) sum += e[i] * hessian.data()[i * cols + j] * e[j];
      sum += damping * mean * e[i] * e[i];
    }
  }
  return sum;
}

// Each round lowers the error that it is told to lower, down to where no single code is better.
TEST(Gptq, RefinementLowersTheErrorUntilNoCodeIsBetter) {
  testing::FreshRandom random;
  ThreadPool pool({.num_threads = 2});
  const int64_t rows = 12, cols = 128;
  const double damping = 0.02;
  const std::vector<float> x = correlated_inputs(600, cols, random);
  const std::vector<float> w = weights(rows * cols, random);
  const Hessian hessian = hessian_of(pool, x, cols);
  for (const FormatId id : {FormatId::kW4G32, FormatId::kW4G64Asym, FormatId::kW8C}) {
    const RoundingGrid grid = rounding_grid(quant_format(id), cols);
    RoundedRows rounded = round_to_nearest(pool, grid, w.data(), rows, cols, nullptr, false);
    double error = damped_error(grid, w, hessian, damping, rounded);
    for (int round = 0; round < 3; ++round) {
      refine(pool, grid, w.data(), hessian, damping, 1, rounded);
      const double next = damped_error(grid, w, hessian, damping, rounded);
      // Slopes are float32.
      EXPECT_LE(next, error * (1 + 1e-4)) << quant_format(id).name;
      if (round == 0) {
        EXPECT_LT(next, 0.9 * error) << quant_format(id).name;
      }
      error = next;
    }
    refine(pool, grid, w.data(), hessian, damping, 100, rounded);
    error = damped_error(grid, w, hessian, damping, rounded);
    for (int trial = 0; trial < 50; ++trial) {
      const auto at = static_cast<size_t>(random.integer(0, rows * cols - 1));
      const uint8_t code = rounded.codes[at];
      for (const int other : {code - 1, code + 1}) {
        if (other < grid.low || other > grid.high) continue;
        rounded.codes[at] = static_cast<uint8_t>(other);
        EXPECT_GE(damped_error(grid, w, hessian, damping, rounded), error * (1 - 1e-4));
        rounded.codes[at] = code;
      }
    }
  }
}

TEST(Gptq, ErrorIsThatOfTheOutputs) {
  testing::FreshRandom random;
  ThreadPool pool({.num_threads = 2});
  const int64_t rows = 9, cols = 128, count = 300;
  const std::vector<float> x = correlated_inputs(count, cols, random);
  const std::vector<float> w = weights(rows * cols, random);
  const RoundingGrid grid = rounding_grid(quant_format(FormatId::kW4G64), cols);
  const RoundedRows rounded = round_to_nearest(pool, grid, w.data(), rows, cols, nullptr, false);
  std::vector<double> size(static_cast<size_t>(cols));  // root mean square of the inputs
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t t = 0; t < count; ++t) size[c] += double{x[t * cols + c]} * x[t * cols + c];
    size[c] = std::sqrt(size[c] / count);
  }
  double error = 0, output = 0, most_error = 0, most_output = 0;
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<double> loss(static_cast<size_t>(cols));
    double losses = 0, sizes = 0;
    for (int64_t c = 0; c < cols; ++c) {
      loss[c] = w[r * cols + c] - value_of(rounded.scales[r * rounded.groups + c / grid.group],
                                           rounded.codes[r * cols + c]);
      losses += std::fabs(loss[c]) * size[c];
      sizes += std::fabs(double{w[r * cols + c]}) * size[c];
    }
    most_error += losses * losses;
    most_output += sizes * sizes;
    for (int64_t t = 0; t < count; ++t) {
      double e = 0, y = 0;
      for (int64_t c = 0; c < cols; ++c) {
        e += loss[c] * x[t * cols + c];
        y += double{w[r * cols + c]} * x[t * cols + c];
      }
      error += e * e / count;
      output += y * y / count;
    }
  }
  const RoundingError found =
      rounding_error(pool, grid, w.data(), rounded, hessian_of(pool, x, cols));
  // A Hessian's element is off by a float32 rounding for each input and a few more, its products by
  // one for each column, all of them relative to what does not cancel.
  const double epsilon = 0x1p-24 * static_cast<double>(count + cols + 8);
  most_error *= epsilon;
  most_output *= epsilon;
  EXPECT_NEAR(found.error, error, most_error);
  EXPECT_NEAR(found.output, output, most_output);
  EXPECT_LE(found.relative(), std::sqrt((error + most_error) / (output - most_output)));
  EXPECT_GE(found.relative(), std::sqrt((error - most_error) / (output + most_output)));
}

TEST(Gptq, ColumnsWithoutInputAreRoundedToNearestAndDisturbNothing) {
  testing::FreshRandom random;
  ThreadPool pool({.num_threads = 2});
  const int64_t rows = 16, cols = 128;
  std::vector<float> x = correlated_inputs(400, cols, random);
  std::vector<int64_t> dead;
  for (int64_t c = 0; c < cols; ++c) {
    if (random.coin(0.2)) dead.push_back(c);
  }
  dead.push_back(5);
  for (size_t t = 0; t < x.size() / cols; ++t) {
    for (const int64_t c : dead) x[t * cols + c] = 0;
  }
  std::vector<float> w = weights(rows * cols, random);
  const Hessian hessian = hessian_of(pool, x, cols);
  // With scales of the weights as they were, which rounding to nearest has as well.
  const GptqOptions options{.order = ColumnOrder::kBySize, .search_scales = false};
  const InverseFactor inverse = invert_hessian(pool, hessian, options.damping, options.order, cols);
  std::sort(dead.begin(), dead.end());
  dead.erase(std::unique(dead.begin(), dead.end()), dead.end());
  EXPECT_EQ(inverse.num_dead_columns, static_cast<int64_t>(dead.size()));
  const RoundingGrid grid = rounding_grid(quant_format(FormatId::kW4G128), cols);
  const RoundedRows gptq = round_gptq(pool, grid, w.data(), rows, hessian, inverse, options);
  const RoundedRows nearest = round_to_nearest(pool, grid, w.data(), rows, cols, nullptr, false);
  for (int64_t r = 0; r < rows; ++r) {
    for (const int64_t c : dead) {
      EXPECT_EQ(gptq.codes[r * cols + c], nearest.codes[r * cols + c]) << c;
    }
  }
}

TEST(Gptq, HasTheSameBitsForAnyThreads) {
  testing::FreshRandom random;
  const int64_t rows = 50, cols = 384;
  const std::vector<float> x = correlated_inputs(500, cols, random);
  const std::vector<float> w = weights(rows * cols, random);
  std::vector<uint8_t> first;
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool({.num_threads = threads});
    const Hessian hessian = hessian_of(pool, x, cols);
    const InverseFactor inverse = invert_hessian(pool, hessian, 0.01, ColumnOrder::kByGroup, 128);
    const RoundingGrid grid = rounding_grid(quant_format(FormatId::kW4G128), cols);
    const RoundedRows rounded = round_gptq(pool, grid, w.data(), rows, hessian, inverse, {});
    if (first.empty()) first = rounded.codes;
    EXPECT_EQ(rounded.codes, first);
  }
}

}  // namespace
}  // namespace braid

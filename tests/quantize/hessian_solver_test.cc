#include "quantize/hessian_solver.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "ops/op_test.h"
#include "quantize/cuda/device_gptq.h"
#include "quantize/cuda/matrix_library.h"
#include "reference/gptq.h"

namespace braid {
namespace {

// What the tensor cores leave out of products of float32 split in two (hessian_solver.h).
constexpr double kSplitLoss = 0x1p-15;

// Both kinds of products on a device.
class HessianSolverTest : public OpTest {
 protected:
  std::vector<bool> exactness() const {
    return on_cuda() ? std::vector<bool>{false, true} : std::vector<bool>{false};
  }

  Tensor matrix(int64_t rows, int64_t cols) {
    return Tensor(DType::kF32, {std::max<int64_t>(rows, 1), cols}, device);
  }

  // Inputs whose neighbours are alike, some larger than others.
  Tensor correlated_inputs(int64_t count, int64_t cols) {
    Tensor x = matrix(count, cols);
    std::vector<float> size(static_cast<size_t>(cols));
    for (float& s : size) s = std::exp(random.normal());
    for (int64_t t = 0; t < count; ++t) {
      float last = random.normal();
      for (int64_t c = 0; c < cols; ++c) {
        last = 0.8f * last + 0.6f * random.normal();
        x.view().row<float>(t)[c] = size[c] * last;
      }
    }
    return x;
  }
  static std::vector<float> values_of(const Tensor& x) {
    const auto values = x.view().span<float>();
    return {values.begin(), values.end()};
  }

  // On the host, as files have it.
  Weight weights(int64_t rows, int64_t cols) {
    Weight weight{.format = &quant_format(FormatId::kF32), .shape = {rows, cols}};
    const auto buffer =
        std::make_shared<Buffer>(static_cast<size_t>(weight.size_bytes()), Device{});
    auto* const values = reinterpret_cast<float*>(buffer->data());
    for (int64_t i = 0; i < rows * cols; ++i) values[i] = random.normal(0.05f);
    weight.data = buffer->data();
    weight.owner = buffer;
    return weight;
  }
  static const float* floats(const Weight& weight) {
    return reinterpret_cast<const float*>(weight.data);
  }

  Hessian hessian_of(const Tensor& x) {
    Hessian hessian(x.shape().dim(1), device);
    hessian.add(stream, workspace, x);
    hessian.finish(stream);
    stream.synchronize();
    return hessian;
  }
  // What the source's inputs may be: these, a little off.
  Tensor source_of(const Tensor& x) {
    Tensor y = matrix(x.shape().dim(0), x.shape().dim(1));
    for (int64_t t = 0; t < x.shape().dim(0); ++t) {
      for (int64_t c = 0; c < x.shape().dim(1); ++c) {
        y.view().row<float>(t)[c] = x.view().row<float>(t)[c] * (1 + 0.03f * random.normal());
      }
    }
    return y;
  }
  Hessian hessian_of(const Tensor& x, const Tensor& y) {
    Hessian hessian(x.shape().dim(1), device);
    hessian.add(stream, workspace, x);
    hessian.add_source(stream, workspace, y, x);
    hessian.finish(stream);
    stream.synchronize();
    return hessian;
  }
  static std::vector<float> diagonal_of(const Hessian& hessian) {
    std::vector<float> diagonal;
    for (int64_t i = 0; i < hessian.cols(); ++i) diagonal.push_back(hessian.diagonal(i));
    return diagonal;
  }
  // With its damping.
  static std::vector<double> damped(const Hessian& hessian, double damping) {
    const int64_t n = hessian.cols();
    std::vector<double> result(hessian.data(), hessian.data() + n * n);
    double mean = 0;
    for (int64_t i = 0; i < n; ++i) mean += result[i * n + i] / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) result[i * n + i] += damping * mean;
    return result;
  }
  // How far, in steps, a weight may drift from what the plain algorithm makes of it: by float32
  // roundings of one update a column, of the weight and of what it moves by; these are within the
  // codes' range. Then what split products leave out of what it moves by in all.
  static double drift_of(const RoundingGrid& grid, int64_t cols, bool split) {
    const double range = grid.high - grid.low + 1;
    return range * (2 * 0x1p-24 * static_cast<double>(cols) + (split ? kSplitLoss : 0));
  }
  // How far, relatively, two sums of rounding errors may be apart by chance. GPTQ's error of a row
  // is Σ d_c u_c², with d_c = 1 / U_cc² and u_c spread evenly over a step, whose square has a
  // standard deviation of √0.8 times its mean; five deviations of a difference.
  static double chance_of(const InverseFactor& inverse, int64_t rows) {
    const auto cols = static_cast<int64_t>(inverse.order.size());
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < cols; ++i) {
      const double u = inverse.factor[i * cols + i], d = 1 / (u * u);
      sum += d;
      squares += d * d;
    }
    return 5 * std::sqrt(2 * 0.8 * squares / (sum * sum) / static_cast<double>(rows));
  }
  // Σ_r e_r·H·e_rᵀ of e = w − the rounded ones.
  static double error_of(const std::vector<double>& h, const RoundingGrid& grid, const float* w,
                         const RoundedRows& rounded) {
    const int64_t cols = rounded.cols;
    std::vector<double> e(static_cast<size_t>(cols));
    double sum = 0;
    for (int64_t r = 0; r < rounded.rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        e[c] = w[r * cols + c] - value_of(rounded.scales[r * rounded.groups + c / grid.group],
                                          rounded.codes[r * cols + c]);
      }
      for (int64_t i = 0; i < cols; ++i) {
        double product = 0;
        for (int64_t j = 0; j < cols; ++j) product += h[i * cols + j] * e[j];
        sum += e[i] * product;
      }
    }
    return sum;
  }
};

TEST_P(HessianSolverTest, HessianIsTheMeanOfOuterProducts) {
  // Beyond 4096 a device sums blocks of the triangle.
  for (const int64_t cols : {random.integer(1, 40), random.integer(41, 300), int64_t{4100}}) {
    const int64_t count = cols > 4000 ? random.integer(2, 5) : random.integer(1, 700);
    const Tensor x = correlated_inputs(count, cols);
    Hessian hessian(cols, device);
    for (int64_t begin = 0; begin < count;) {
      const int64_t piece = std::min(count - begin, random.integer(1, 300));
      hessian.add(stream, workspace, x.view().rows(begin, piece));
      begin += piece;
    }
    hessian.finish(stream);
    stream.synchronize();
    EXPECT_EQ(hessian.num_inputs(), count);
    const double loss =
        (static_cast<double>(count) + 4) * 2 * kUnitRoundoff + (on_cuda() ? kSplitLoss : 0);
    const auto dot = [&](int64_t i, int64_t j) {
      double sum = 0;
      for (int64_t t = 0; t < count; ++t) {
        sum += double{x.view().row<float>(t)[i]} * x.view().row<float>(t)[j];
      }
      return sum * 2 / static_cast<double>(count);
    };
    const int64_t stride = cols > 4000 ? 37 : 1;
    for (int64_t i = 0; i < cols; i += stride) {
      for (int64_t j = 0; j < cols; j += stride) {
        ASSERT_NEAR(hessian.data()[i * cols + j], dot(i, j),
                    loss * std::sqrt(dot(i, i) * dot(j, j)))
            << cols << " columns: " << i << "," << j;
        ASSERT_EQ(hessian.data()[i * cols + j], hessian.data()[j * cols + i]);
      }
    }
  }
}

TEST_P(HessianSolverTest, SourcesAreSummedBesideIt) {
  const int64_t cols = random.integer(1, 200), count = random.integer(1, 300);
  const Tensor x = correlated_inputs(count, cols), y = source_of(x);
  const Hessian hessian = hessian_of(x, y);
  const double loss =
      (static_cast<double>(count) + 4) * kUnitRoundoff + (on_cuda() ? kSplitLoss : 0);
  for (int64_t i = 0; i < cols; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      double sum = 0, yy = 0, xx = 0;
      for (int64_t t = 0; t < count; ++t) {
        const double a = y.view().row<float>(t)[i], b = x.view().row<float>(t)[j];
        sum += a * b;
        yy += a * a;
        xx += b * b;
      }
      ASSERT_NEAR(hessian.source_sums()[i * cols + j], sum, loss * std::sqrt(yy * xx))
          << i << "," << j;
    }
  }
  EXPECT_EQ(hessian_of(x).source_sums(), nullptr);
}

// The products of bfloat16 inputs are exact.
TEST_P(HessianSolverTest, HessianOfRoundedInputs) {
  if (!on_cuda()) GTEST_SKIP() << "the CPU's inputs are float32";
  const int64_t cols = random.integer(1, 200), count = random.integer(1, 300);
  const int64_t stride = (cols + 63) / 64 * 64;
  const Tensor x = correlated_inputs(count, cols);
  const Tensor rounded(DType::kBF16, {count, stride}, device);
  std::vector<float> values;
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t c = 0; c < cols; ++c) {
      const BFloat16 value = to_bfloat16(x.view().row<float>(t)[c]);
      static_cast<uint16_t*>(rounded.view().raw())[t * stride + c] = value.bits;
      values.push_back(to_float(value));
    }
  }
  Hessian hessian(cols, device);
  hessian.add(stream, workspace, rounded.view().columns(0, cols));
  hessian.finish(stream);
  stream.synchronize();
  const std::vector<double> expected = reference::hessian(values, cols);
  for (int64_t i = 0; i < cols; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      const double size = std::sqrt(expected[i * cols + i] * expected[j * cols + j]);
      ASSERT_NEAR(hessian.data()[i * cols + j], expected[i * cols + j],
                  (static_cast<double>(count) + 4) * 2 * kUnitRoundoff * size)
          << i << "," << j;
    }
  }
}

// L⁻¹·A·L⁻ᵀ = 1, in float64.
TEST_P(HessianSolverTest, InverseOfAFactor) {
  if (!on_cuda()) GTEST_SKIP() << "see gptq_test";
  for (const int64_t n : {int64_t{1}, random.integer(2, 64), random.integer(65, 128),
                          random.integer(129, 400), int64_t{1100}}) {
    const int64_t stride = (n + 63) / 64 * 64;
    std::vector<double> a(static_cast<size_t>(n * n));
    std::vector<double> factors(static_cast<size_t>(n * 8));
    for (double& value : factors) value = random.normal();
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t k = 0; k < 8; ++k) a[i * n + j] += factors[i * 8 + k] * factors[j * 8 + k];
      }
      a[i * n + i] += 1 + random.uniform(0, 1);
    }
    const Tensor lower(DType::kF64, {n, stride}, device);
    const Tensor scratch(DType::kF64, {cuda::inverse_scratch(n)}, device);
    const Tensor failures(DType::kI32, {1}, device);
    double* const l = lower.data<double>();
    for (int64_t i = 0; i < n; ++i) {
      // What is above the diagonal is not read.
      for (int64_t j = 0; j < n; ++j) l[i * stride + j] = j <= i ? a[i * n + j] : 1e300;
    }
    auto* const count = static_cast<int32_t*>(failures.view().raw());
    cuda::invert_factor(stream, l, n, stride, scratch.data<double>(), count);
    stream.synchronize();
    ASSERT_EQ(*count, 0) << n;
    double greatest = 0;
    std::vector<double> product(static_cast<size_t>(n * n));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k <= i; ++k) {
        for (int64_t j = 0; j < n; ++j) product[i * n + j] += l[i * stride + k] * a[k * n + j];
      }
      for (int64_t j = 0; j < n; ++j) {
        ASSERT_TRUE(j <= i || l[i * stride + j] == 0) << n << ": " << i << "," << j;
      }
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) sum += std::fabs(a[i * n + j]);
      greatest = std::max(greatest, sum);
    }
    // The least eigenvalue is at least 1.
    const double bound = 0x1p-52 * static_cast<double>(n) * (4 + greatest);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t k = 0; k <= j; ++k) sum += product[i * n + k] * l[j * stride + k];
        ASSERT_NEAR(sum, i == j ? 1 : 0, bound) << n << ": " << i << "," << j;
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j <= i; ++j) l[i * stride + j] = a[i * n + j];
    }
    l[(n - 1) * stride + n - 1] = -1;
    cuda::invert_factor(stream, l, n, stride, scratch.data<double>(), count);
    stream.synchronize();
    EXPECT_GT(*count, 0) << n;
  }
}

struct Case {
  FormatId format;
  bool per_row;
  ColumnOrder order;
};
constexpr Case kCases[] = {{FormatId::kW4G128, false, ColumnOrder::kBySize},
                           {FormatId::kW4G128, false, ColumnOrder::kInPlace},
                           {FormatId::kW4G32, false, ColumnOrder::kByGroup},
                           {FormatId::kW4G64Asym, false, ColumnOrder::kByGroup},
                           {FormatId::kW4G32Asym, false, ColumnOrder::kBySize},
                           {FormatId::kW4G128, true, ColumnOrder::kByGroup},
                           {FormatId::kW8C, false, ColumnOrder::kBySize},
                           {FormatId::kQ4_0, false, ColumnOrder::kByGroup},
                           {FormatId::kQ4_1, false, ColumnOrder::kInPlace}};

// Bit for bit.
TEST_P(HessianSolverTest, NearestIsThatOfTheCpu) {
  if (!on_cuda()) GTEST_SKIP() << "see rounding_test";
  const int64_t rows = random.integer(1, 40), cols = 128 * random.integer(1, 5);
  const Hessian hessian = hessian_of(correlated_inputs(8, cols));
  const auto solver = HessianSolver::make(stream, workspace, hessian, {});
  const Weight w = weights(rows + 2, cols);
  for (const Case& one : kCases) {
    const RoundingGrid grid = rounding_grid(quant_format(one.format), cols, one.per_row);
    for (const bool search : {false, true}) {
      solver->load(grid, w, 1, rows);
      solver->round_to_nearest(search);
      const RoundedRows expected =
          round_to_nearest(pool, grid, floats(w) + cols, rows, cols, nullptr, search);
      const RoundedRows& found = solver->rounded();
      ASSERT_EQ(found.codes, expected.codes) << grid.format->name;
      ASSERT_EQ(found.scales.size(), expected.scales.size());
      for (size_t i = 0; i < found.scales.size(); ++i) {
        ASSERT_EQ(found.scales[i].scale, expected.scales[i].scale) << grid.format->name;
        ASSERT_EQ(found.scales[i].zero, expected.scales[i].zero) << grid.format->name;
        ASSERT_EQ(found.scales[i].min, expected.scales[i].min) << grid.format->name;
      }
      const WeightError error = solver->weight_error();
      const WeightError other = weight_error(
          pool, grid, std::span(floats(w) + cols, static_cast<size_t>(rows * cols)), expected);
      EXPECT_NEAR(error.error, other.error, 1e-6 * other.error);
      EXPECT_NEAR(error.square, other.square, 1e-6 * other.square);
    }
  }
}

// Codes equal those of the plain algorithm, which follows where a column could as well be rounded
// the other way.
TEST_P(HessianSolverTest, RoundsAsThePlainAlgorithm) {
  // 640 columns: of two blocks whose losses travel together.
  for (const int64_t cols : {int64_t{256}, int64_t{640}}) {
    const int64_t rows = cols > 256 ? 2 : 6;
    const Tensor x = correlated_inputs(2 * cols, cols);
    const Hessian hessian = hessian_of(x);
    const Weight w = weights(rows, cols);
    for (const Case& one : kCases) {
      if (cols > 256 && one.format != FormatId::kW4G128) continue;
      const RoundingGrid grid = rounding_grid(quant_format(one.format), cols, one.per_row);
      const GptqOptions options{.damping = 0.05, .order = one.order, .refinements = 0};
      const std::vector<int32_t> order =
          order_columns(diagonal_of(hessian), options.order, grid.group);
      const std::vector<double> inverse =
          reference::inverse(damped(hessian, options.damping), cols);
      for (const bool exact : exactness()) {
        const auto solver = HessianSolver::make(stream, workspace, hessian, {.exact = exact});
        EXPECT_EQ(solver->invert(options.damping, options.order, grid.group).damping,
                  options.damping);
        solver->load(grid, w, 0, rows);
        solver->round_gptq(options);
        const RoundedRows& rounded = solver->rounded();
        const double doubt = drift_of(grid, cols, on_cuda() && !exact);
        int64_t doubtful = 0;
        for (int64_t r = 0; r < rows; ++r) {
          const std::vector<double> row(floats(w) + r * cols, floats(w) + (r + 1) * cols);
          const std::vector<GroupScale> scales(rounded.scales.begin() + r * rounded.groups,
                                               rounded.scales.begin() + (r + 1) * rounded.groups);
          const std::span codes(rounded.codes.data() + r * cols, static_cast<size_t>(cols));
          const reference::GptqRow expected =
              reference::gptq_row(grid, row, scales, inverse, order, codes, doubt);
          for (int64_t i = 0; i < cols; ++i) {
            ASSERT_EQ(codes[order[i]], expected.codes[order[i]])
                << grid.format->name << (exact ? " exact" : "") << " row " << r << " column " << i;
          }
          doubtful += expected.doubtful;
        }
        // By chance one in 1 / (2 · doubt).
        EXPECT_LT(doubtful, rows * cols / 8) << grid.format->name;
      }
    }
  }
}

// The same of rows that aim at the source's outputs.
TEST_P(HessianSolverTest, RoundsWhatAimsAtTheSource) {
  const int64_t rows = 6, cols = 256;
  const Tensor x = correlated_inputs(2 * cols, cols), y = source_of(x);
  const Hessian hessian = hessian_of(x, y);
  const Weight w = weights(rows, cols);
  const RoundingGrid grid = rounding_grid(quant_format(FormatId::kW4G128), cols);
  for (const ColumnOrder kind : {ColumnOrder::kInPlace, ColumnOrder::kBySize}) {
    const GptqOptions options{.damping = 0.05, .order = kind, .refinements = 0};
    const std::vector<int32_t> order = order_columns(diagonal_of(hessian), kind, grid.group);
    const std::vector<double> inverse = reference::inverse(damped(hessian, options.damping), cols);
    for (const bool exact : exactness()) {
      const auto solver = HessianSolver::make(stream, workspace, hessian, {.exact = exact});
      solver->invert(options.damping, options.order, grid.group);
      solver->load(grid, w, 0, rows);
      solver->round_gptq(options);
      const RoundedRows rounded = solver->rounded();
      int64_t doubtful = 0;
      double aimed_error = 0, furthest = 0;
      std::vector<double> e(static_cast<size_t>(cols));
      for (int64_t r = 0; r < rows; ++r) {
        const std::vector<double> row(floats(w) + r * cols, floats(w) + (r + 1) * cols);
        const std::vector<double> aimed =
            reference::aimed_row(row, values_of(x), values_of(y), inverse);
        const std::vector<GroupScale> scales(rounded.scales.begin() + r * rounded.groups,
                                             rounded.scales.begin() + (r + 1) * rounded.groups);
        // Sums of n products in float32 are off by chance, by √n·2^-24 of their size in each
        // element; a row carries √cols·|w| of that, the inverse 1 / damping; four times that.
        double square = 0, step = scales[0].scale;
        for (const double value : row) square += value * value;
        for (const GroupScale& scale : scales) step = std::min<double>(step, scale.scale);
        const double off = 4 * std::sqrt(2.0 * static_cast<double>(cols)) * 0x1p-24 *
                           std::sqrt(square) / step / options.damping;
        furthest = std::max(furthest, off);
        const std::span codes(rounded.codes.data() + r * cols, static_cast<size_t>(cols));
        const reference::GptqRow expected =
            reference::gptq_row(grid, aimed, scales, inverse, order, codes,
                                off + drift_of(grid, cols, on_cuda() && !exact));
        for (int64_t i = 0; i < cols; ++i) {
          ASSERT_EQ(codes[order[i]], expected.codes[order[i]])
              << (exact ? "exact " : "") << "row " << r << " column " << i;
        }
        doubtful += expected.doubtful;
        for (int64_t c = 0; c < cols; ++c) {
          e[c] = aimed[c] - value_of(scales[c / grid.group], rounded.codes[r * cols + c]);
        }
        for (int64_t i = 0; i < cols; ++i) {
          for (int64_t j = 0; j < cols; ++j) {
            aimed_error += e[i] * hessian.data()[i * cols + j] * e[j] / 2;
          }
        }
      }
      EXPECT_LT(doubtful, rows * cols / 8);
      // Reported is what rounding does to the rows aimed at, by errors of 1/√12 of a step and more;
      // `furthest` is where the inverse is 1 / damping, and errors count as much less.
      EXPECT_NEAR(solver->rounding_error().error, aimed_error,
                  2 * std::sqrt(12.0) * furthest * options.damping * aimed_error);
      // Loaded anew, nothing is aimed at until it is asked for.
      solver->load(grid, w, 0, rows);
      solver->round_to_nearest(false);
      EXPECT_NEAR(solver->rounding_error().error,
                  error_of(damped(hessian, 0), grid, floats(w), solver->rounded()) / 2,
                  1e-3 * solver->rounding_error().error);
    }
  }
}

// A device's result is as good as the CPU's: its trajectory of choices may part from the CPU's
// where two codes are equally good, and goes on as another draw of the same chance.
TEST_P(HessianSolverTest, ErrorsAreThoseOfTheCpu) {
  if (!on_cuda()) GTEST_SKIP() << "the CPU is what it would be compared with";
  const int64_t rows = random.integer(40, 60), cols = 640;
  const Tensor x = correlated_inputs(2 * cols, cols);
  const Hessian hessian = hessian_of(x);
  Hessian host(cols);
  host.add(pool, x.view().data<float>(), 2 * cols, cols);
  host.finish(pool);
  const Weight w = weights(rows, cols);
  for (const Case& one : kCases) {
    const RoundingGrid grid = rounding_grid(quant_format(one.format), cols, one.per_row);
    for (const int refinements : {0, 2}) {
      const GptqOptions options{.order = one.order, .refinements = refinements};
      const InverseFactor inverse =
          invert_hessian(pool, host, options.damping, options.order, grid.group);
      RoundedRows expected = round_gptq(pool, grid, floats(w), rows, host, inverse, options);
      refine(pool, grid, floats(w), host, inverse.damping, refinements, expected);
      const RoundingError other = rounding_error(pool, grid, floats(w), expected, host);
      for (const bool exact : exactness()) {
        const auto solver = HessianSolver::make(stream, workspace, hessian, {.exact = exact});
        solver->invert(options.damping, options.order, grid.group);
        solver->load(grid, w, 0, rows);
        solver->round_gptq(options);
        const RoundingError error = solver->rounding_error();
        EXPECT_NEAR(error.error, other.error, chance_of(inverse, rows) * other.error)
            << grid.format->name << " refined " << refinements << (exact ? " exact" : "");
        EXPECT_NEAR(error.output, other.output, 1e-3 * other.output);
        // The figure is that of the codes.
        const RoundedRows& rounded = solver->rounded();
        EXPECT_NEAR(error.error, error_of(damped(hessian, 0), grid, floats(w), rounded) / 2,
                    1e-3 * error.error)
            << grid.format->name;
      }
    }
  }
}

TEST_P(HessianSolverTest, RefinementLowersTheErrorUntilNoCodeIsBetter) {
  const int64_t rows = 12, cols = 128;
  const double damping = 0.02;
  const Hessian hessian = hessian_of(correlated_inputs(600, cols));
  const std::vector<double> h = damped(hessian, damping);
  const Weight w = weights(rows, cols);
  for (const FormatId id : {FormatId::kW4G32, FormatId::kW4G64Asym, FormatId::kW8C}) {
    const RoundingGrid grid = rounding_grid(quant_format(id), cols);
    const auto solver = HessianSolver::make(stream, workspace, hessian, {});
    const auto refined = [&](int rounds) {
      solver->invert(damping, ColumnOrder::kBySize, grid.group);
      solver->load(grid, w, 0, rows);
      solver->round_gptq({.damping = damping, .refinements = rounds});
      return error_of(h, grid, floats(w), solver->rounded());
    };
    double error = refined(0);
    for (int rounds = 1; rounds <= 3; ++rounds) {
      const double next = refined(rounds);
      // Slopes are float32.
      EXPECT_LE(next, error * (1 + 1e-4)) << grid.format->name << " round " << rounds;
      error = next;
    }
    error = refined(100);
    RoundedRows rounded = solver->rounded();
    for (int trial = 0; trial < 50; ++trial) {
      const auto at = static_cast<size_t>(random.integer(0, rows * cols - 1));
      const uint8_t code = rounded.codes[at];
      for (const int other : {code - 1, code + 1}) {
        if (other < grid.low || other > grid.high) continue;
        rounded.codes[at] = static_cast<uint8_t>(other);
        EXPECT_GE(error_of(h, grid, floats(w), rounded), error * (1 - 1e-4));
        rounded.codes[at] = code;
      }
    }
  }
}

TEST_P(HessianSolverTest, ColumnsWithoutInputAreRoundedToNearest) {
  const int64_t rows = 16, cols = 256;
  const Tensor x = correlated_inputs(600, cols);
  std::vector<int64_t> dead = {5};
  for (int64_t c = 6; c < cols; ++c) {
    if (random.integer(0, 4) == 0) dead.push_back(c);
  }
  for (int64_t t = 0; t < 600; ++t) {
    for (const int64_t c : dead) x.view().row<float>(t)[c] = 0;
  }
  const Hessian hessian = hessian_of(x);
  const Weight w = weights(rows, cols);
  const RoundingGrid grid = rounding_grid(quant_format(FormatId::kW4G128), cols);
  const GptqOptions options{.search_scales = false, .refinements = 0};
  const auto solver = HessianSolver::make(stream, workspace, hessian, {});
  EXPECT_EQ(solver->invert(options.damping, options.order, grid.group).num_dead_columns,
            static_cast<int64_t>(dead.size()));
  solver->load(grid, w, 0, rows);
  solver->round_gptq(options);
  const RoundedRows gptq = solver->rounded();
  solver->round_to_nearest(false);
  const RoundedRows& nearest = solver->rounded();
  for (int64_t r = 0; r < rows; ++r) {
    for (const int64_t c : dead) {
      EXPECT_EQ(gptq.codes[r * cols + c], nearest.codes[r * cols + c]) << c;
    }
  }
}

TEST_P(HessianSolverTest, DampingGrowsUntilThereIsAFactor) {
  // Two inputs for eight columns.
  Tensor x = matrix(2, 8);
  for (int64_t i = 0; i < 16; ++i) {
    x.view().row<float>(i / 8)[i % 8] = static_cast<float>(i < 8 ? i + 1 : 16 - i);
  }
  const Hessian hessian = hessian_of(x);
  const auto solver = HessianSolver::make(stream, workspace, hessian, {});
  EXPECT_GT(solver->invert(0, ColumnOrder::kInPlace, 8).damping, 0);
  EXPECT_EQ(solver->invert(0.01, ColumnOrder::kInPlace, 8).damping, 0.01);
  x.view().row<float>(0)[1] = kNan;
  const Hessian broken = hessian_of(x);
  const auto other = HessianSolver::make(stream, workspace, broken, {});
  EXPECT_THROW(other->invert(0.01, ColumnOrder::kInPlace, 8), Error);
}

BRAID_INSTANTIATE_PER_TARGET(HessianSolverTest);

}  // namespace
}  // namespace braid

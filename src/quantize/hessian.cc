#include "quantize/hessian.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "quantize/cholesky.h"
#include "quantize/matrix_product.h"

namespace braid {
namespace {

constexpr int64_t kRowGrain = 64;
constexpr int kMaxAttempts = 8;

std::vector<int32_t> order_columns(const Hessian& hessian, ColumnOrder order, int64_t group) {
  const int64_t n = hessian.cols();
  std::vector<int32_t> columns(static_cast<size_t>(n));
  std::iota(columns.begin(), columns.end(), 0);
  if (order == ColumnOrder::kInPlace) return columns;
  const auto larger = [&](int32_t a, int32_t b) {
    return hessian.diagonal(a) > hessian.diagonal(b);
  };
  if (order == ColumnOrder::kBySize) {
    std::stable_sort(columns.begin(), columns.end(), larger);
    return columns;
  }
  struct Group {
    int64_t first, count;
    double sum = 0;
  };
  std::vector<Group> groups;
  for (int64_t first = 0; first < n; first += group) {
    Group& one = groups.emplace_back(Group{first, std::min(group, n - first)});
    for (int64_t i = 0; i < one.count; ++i) one.sum += hessian.diagonal(first + i);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.sum > b.sum; });
  auto to = columns.begin();
  for (const Group& one : groups) {
    std::iota(to, to + one.count, static_cast<int32_t>(one.first));
    std::stable_sort(to, to + one.count, larger);
    to += one.count;
  }
  return columns;
}

}  // namespace

Hessian::Hessian(int64_t cols)
    : cols_(cols), sums_(static_cast<size_t>(cols * cols) * sizeof(float), Device{}) {}

void Hessian::add(ThreadPool& pool, const float* x, int64_t count, int64_t row_stride) {
  add_product(pool, MatrixProduct<float>{.rows = cols_,
                                         .cols = cols_,
                                         .depth = count,
                                         .a = x,
                                         .a_row_stride = 1,
                                         .a_depth_stride = row_stride,
                                         .b = x,
                                         .b_depth_stride = row_stride,
                                         .b_col_stride = 1,
                                         .c = sums(),
                                         .c_stride = cols_,
                                         .part = MatrixProduct<float>::Part::kUpper});
  num_inputs_ += count;
}

void Hessian::finish(ThreadPool& pool) {
  const float factor = num_inputs_ > 0 ? 2.0f / static_cast<float>(num_inputs_) : 0.0f;
  float* const h = sums();
  const int64_t n = cols_;
  pool.parallel_for(n, kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = i; j < n; ++j) h[i * n + j] *= factor;
    }
  });
  // Tile by tile, as one side runs down columns.
  pool.parallel_for(n, kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t block = 0; block < end; block += kRowGrain) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t stop = std::min({block + kRowGrain, i, n});
        for (int64_t j = block; j < stop; ++j) h[i * n + j] = h[j * n + i];
      }
    }
  });
}

InverseFactor invert_hessian(ThreadPool& pool, const Hessian& hessian, double damping,
                             ColumnOrder order, int64_t group) {
  const int64_t n = hessian.cols();
  const float* const h = hessian.data();
  InverseFactor result;
  result.order = order_columns(hessian, order, group);
  double mean = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float value = hessian.diagonal(i);
    if (value == 0) ++result.num_dead_columns;
    mean += value / static_cast<double>(n);
  }
  if (mean == 0) mean = 1;

  // With the columns in reverse, the factor of H' = L·Lᵀ gives the upper one of the inverse
  // without the inverse itself: U = P·L⁻¹·P, where P reverses.
  std::vector<double> lower(static_cast<size_t>(n * n));
  const auto fill = [&](double added) {
    pool.parallel_for(n, kRowGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const float* const row = h + int64_t{result.order[n - 1 - i]} * n;
        for (int64_t j = 0; j <= i; ++j) lower[i * n + j] = row[result.order[n - 1 - j]];
        double& diagonal = lower[i * n + i];
        diagonal = (diagonal == 0 ? 1 : diagonal) + added;
      }
    });
  };
  result.damping = damping;
  for (int attempt = 0;; ++attempt) {
    fill(result.damping * mean);
    if (factor_cholesky(pool, n, lower.data())) break;
    if (attempt == kMaxAttempts) {
      throw Error(
          "a Hessian of {} columns has no factor, even with damping {}: its inputs are not "
          "finite",
          n, result.damping);
    }
    result.damping = std::max(10 * result.damping, 1e-4);
  }
  invert_lower(pool, n, lower.data());
  result.factor.resize(static_cast<size_t>(n * n));
  pool.parallel_for(n, kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const double* const row = lower.data() + (n - 1 - i) * n;
      for (int64_t j = i; j < n; ++j) {
        result.factor[i * n + j] = static_cast<float>(row[n - 1 - j]);
      }
    }
  });
  return result;
}

}  // namespace braid

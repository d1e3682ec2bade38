#include "quantize/gptq.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "quantize/matrix_product.h"

namespace braid {
namespace {

constexpr int64_t kBlock = 128;  // columns whose losses reach the later ones together
constexpr int64_t kRowGrain = 16;
constexpr int64_t kErrorRows = 512;

std::vector<float> diagonal_of(const Hessian& hessian) {
  std::vector<float> diagonal(static_cast<size_t>(hessian.cols()));
  for (int64_t i = 0; i < hessian.cols(); ++i) diagonal[i] = hessian.diagonal(i);
  return diagonal;
}

}  // namespace

double RoundingError::relative() const { return output > 0 ? std::sqrt(error / output) : 0; }

RoundedRows round_to_nearest(ThreadPool& pool, const RoundingGrid& grid, const float* w,
                             int64_t rows, int64_t cols, const float* importance, bool search) {
  RoundedRows rounded(grid, rows, cols);
  pool.parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      round_row(grid, w + r * cols, importance, search, r, rounded);
    }
  });
  return rounded;
}

RoundedRows round_gptq(ThreadPool& pool, const RoundingGrid& grid, const float* w, int64_t rows,
                       const Hessian& hessian, const InverseFactor& inverse,
                       const GptqOptions& options) {
  const int64_t cols = hessian.cols();
  const std::vector<int32_t>& order = inverse.order;
  const float* const u = inverse.factor.data();
  const std::vector<float> diagonal = diagonal_of(hessian);
  RoundedRows rounded(grid, rows, cols);

  // The weights yet to be rounded, in the order of rounding; and each block's losses.
  std::vector<float> left(static_cast<size_t>(rows * cols));
  std::vector<float> losses(static_cast<size_t>(rows * kBlock));
  const bool fit_first = options.order == ColumnOrder::kBySize;
  std::vector<float> importance(static_cast<size_t>(cols));  // in the order of rounding
  for (int64_t i = 0; i < cols; ++i) importance[i] = diagonal[order[i]];
  pool.parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const from = w + r * cols;
      for (int64_t i = 0; i < cols; ++i) left[r * cols + i] = from[order[i]];
      for (int64_t g = 0; g < rounded.groups && fit_first; ++g) {
        const int64_t first = g * grid.group, last = std::min(first + grid.group, cols);
        rounded.scales[r * rounded.groups + g] = fit_group(
            grid, from + first, diagonal.data() + first, last - first, options.search_scales);
      }
    }
  });

  for (int64_t block = 0; block < cols; block += kBlock) {
    const int64_t width = std::min(kBlock, cols - block);
    pool.parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        float* const row = left.data() + r * cols;
        for (int64_t i = 0; i < width; ++i) {
          const int64_t column = block + i;
          const int64_t original = order[column];
          const int64_t g = original / grid.group;
          GroupScale& scale = rounded.scales[r * rounded.groups + g];
          // Groups follow one another whole, and none straddles blocks but those of whole rows,
          // which begin before anything is lost.
          if (!fit_first && (column == 0 || order[column - 1] / grid.group != g)) {
            scale = fit_group(grid, row + column, importance.data() + column,
                              std::min(grid.group, cols - g * grid.group), options.search_scales);
          }
          const int code = code_of(grid, scale, row[column]);
          rounded.codes[r * cols + original] = static_cast<uint8_t>(code);
          const float* const factors = u + column * cols;
          const float loss = (row[column] - value_of(scale, code)) / factors[column];
          losses[r * kBlock + i] = loss;
          add_scaled(block + width - column - 1, -loss, factors + column + 1, row + column + 1);
        }
      }
    });
    const int64_t next = block + width;
    add_product(pool, MatrixProduct<float>{.rows = rows,
                                           .cols = cols - next,
                                           .depth = width,
                                           .a = losses.data(),
                                           .a_row_stride = kBlock,
                                           .b = u + block * cols + next,
                                           .b_depth_stride = cols,
                                           .c = left.data() + next,
                                           .c_stride = cols,
                                           .alpha = -1});
  }
  return rounded;
}

RoundingError rounding_error(ThreadPool& pool, const RoundingGrid& grid, const float* w,
                             const RoundedRows& rounded, const Hessian& hessian) {
  const int64_t cols = rounded.cols;
  const float* const h = hessian.data();
  std::vector<float> rows, products;
  std::vector<double> sums;
  // ½ Σ_r d_r·H·d_rᵀ
  const auto half_trace = [&](bool of_losses) {
    double total = 0;
    for (int64_t first = 0; first < rounded.rows; first += kErrorRows) {
      const int64_t count = std::min(kErrorRows, rounded.rows - first);
      rows.assign(static_cast<size_t>(count * cols), 0);
      products.assign(static_cast<size_t>(count * cols), 0);
      sums.assign(static_cast<size_t>(count), 0);
      pool.parallel_for(count, kRowGrain, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t r = first + i;
          for (int64_t c = 0; c < cols; ++c) {
            float value = w[r * cols + c];
            if (of_losses) {
              value -= value_of(rounded.scales[r * rounded.groups + c / grid.group],
                                rounded.codes[r * cols + c]);
            }
            rows[i * cols + c] = value;
          }
        }
      });
      add_product(pool, MatrixProduct<float>{.rows = count,
                                             .cols = cols,
                                             .depth = cols,
                                             .a = rows.data(),
                                             .a_row_stride = cols,
                                             .b = h,
                                             .b_depth_stride = cols,
                                             .c = products.data(),
                                             .c_stride = cols});
      pool.parallel_for(count, kRowGrain, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          for (int64_t c = 0; c < cols; ++c) {
            sums[i] += double{rows[i * cols + c]} * products[i * cols + c];
          }
        }
      });
      for (const double sum : sums) total += sum / 2;
    }
    return std::max(0.0, total);
  };
  return {.error = half_trace(true), .output = half_trace(false)};
}

}  // namespace braid

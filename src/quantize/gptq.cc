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

std::vector<float> aimed_weights(ThreadPool& pool, const float* w, int64_t rows,
                                 const Hessian& hessian, const InverseFactor& inverse) {
  const int64_t n = hessian.cols();
  const auto size = static_cast<size_t>(rows * n);
  // C − H, of which W·(C − H) would be the small difference of large numbers.
  std::vector<float> drift(static_cast<size_t>(n * n));
  const float* const h = hessian.data();
  const float* const sums = hessian.source_sums();
  const float factor = hessian.factor();
  pool.parallel_for(n, kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin * n; i < end * n; ++i) drift[i] = factor * sums[i] - h[i];
  });
  // a · B, of all rows.
  const auto times = [&](const float* a, const float* b, int64_t depth_stride, int64_t col_stride) {
    std::vector<float> product(size);
    add_product(pool, MatrixProduct<float>{.rows = rows,
                                           .cols = n,
                                           .depth = n,
                                           .a = a,
                                           .a_row_stride = n,
                                           .b = b,
                                           .b_depth_stride = depth_stride,
                                           .b_col_stride = col_stride,
                                           .c = product.data(),
                                           .c_stride = n});
    return product;
  };
  std::vector<float> slopes = times(w, drift.data(), n, 1);
  const std::vector<int32_t>& order = inverse.order;
  pool.parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(n));
    for (int64_t r = begin; r < end; ++r) {
      float* const from = slopes.data() + r * n;
      for (int64_t i = 0; i < n; ++i) row[i] = from[order[i]];
      std::copy(row.begin(), row.end(), from);
    }
  });
  // ·H'⁻¹ = ·Uᵀ·U, in the order of the factor.
  const float* const u = inverse.factor.data();
  slopes = times(slopes.data(), u, 1, n);
  slopes = times(slopes.data(), u, n, 1);
  std::vector<float> aimed(w, w + size);
  pool.parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < n; ++i) aimed[r * n + order[i]] += slopes[r * n + i];
    }
  });
  return aimed;
}

namespace {

// State of refine(): what rounding loses of the outputs, against the inputs.
class Refinement {
 public:
  Refinement(ThreadPool& pool, const RoundingGrid& grid, const float* w, const Hessian& hessian,
             double damping, RoundedRows& rounded)
      : pool_(pool), grid_(grid), w_(w), h_(hessian.data()), rounded_(rounded) {
    const int64_t cols = rounded.cols;
    double mean = 0;
    for (int64_t i = 0; i < cols; ++i) mean += hessian.diagonal(i) / static_cast<double>(cols);
    added_ = static_cast<float>(damping * mean);
    slopes_.resize(static_cast<size_t>(rounded.rows * cols));
    values_.resize(static_cast<size_t>(rounded.rows * std::min(grid.group, cols)));
    changes_.resize(static_cast<size_t>(rounded.rows));
  }

  // Slopes S = (W − Q)·H', afresh, as updates add up roundings.
  void find_slopes() {
    const int64_t cols = rounded_.cols;
    std::vector<float> losses(slopes_.size());
    pool_.parallel_for(rounded_.rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          const float loss = w_[r * cols + c] - value_of(scale(r, c / grid_.group), code(r, c));
          losses[r * cols + c] = loss;
          slopes_[r * cols + c] = added_ * loss;
        }
      }
    });
    add_product(pool_, MatrixProduct<float>{.rows = rounded_.rows,
                                            .cols = cols,
                                            .depth = cols,
                                            .a = losses.data(),
                                            .a_row_stride = cols,
                                            .b = h_,
                                            .b_depth_stride = cols,
                                            .c = slopes_.data(),
                                            .c_stride = cols});
  }

  // Of each group in turn: with codes c (less the zero) of its columns and scale s + d, the error
  // changes by −2 d (S·c) + d² (c·H'·c).
  void fit_scales() {
    const int64_t cols = rounded_.cols;
    std::vector<std::vector<float>> products(
        static_cast<size_t>(pool_.num_threads()),
        std::vector<float>(static_cast<size_t>(std::min(grid_.group, cols))));
    for (int64_t g = 0; g < rounded_.groups; ++g) {
      const int64_t first = g * grid_.group, count = std::min(grid_.group, cols - first);
      pool_.parallel_for(rounded_.rows, kRowGrain, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t r = begin; r < end; ++r) {
          GroupScale& old = rounded_.scales[r * rounded_.groups + g];
          float* const c = values_.data() + r * count;
          double slope = 0, curve = 0;
          for (int64_t i = 0; i < count; ++i) {
            c[i] = static_cast<float>(code(r, first + i) - old.zero);
            slope += double{c[i]} * slopes_[r * cols + first + i];
          }
          // c·H', of the group's columns.
          std::vector<float>& product = products[thread];
          for (int64_t i = 0; i < count; ++i) product[i] = added_ * c[i];
          for (int64_t i = 0; i < count; ++i) {
            add_scaled(count, c[i], h_ + (first + i) * cols + first, product.data());
          }
          for (int64_t i = 0; i < count; ++i) curve += double{c[i]} * product[i];
          float change = 0;
          if (curve > 0 && old.scale != 0) {
            const float wanted = old.scale + static_cast<float>(slope / curve);
            const float stored = stored_scale(grid_, wanted);
            const double d = double{stored} - old.scale;
            // Scales keep their sign; a rounded one may be worse than what was.
            if (stored * old.scale > 0 && d * curve * d < 2 * d * slope) {
              change = static_cast<float>(d);
              old.scale = stored;
            }
          }
          for (int64_t i = 0; i < count; ++i) {
            slopes_[r * cols + first + i] -= change * added_ * c[i];
            c[i] *= change;
          }
        }
      });
      add_product(pool_, MatrixProduct<float>{.rows = rounded_.rows,
                                              .cols = cols,
                                              .depth = count,
                                              .a = values_.data(),
                                              .a_row_stride = count,
                                              .b = h_ + first * cols,
                                              .b_depth_stride = cols,
                                              .c = slopes_.data(),
                                              .c_stride = cols,
                                              .alpha = -1});
    }
  }

  // Column by column; how many codes changed.
  int64_t fit_codes() {
    const int64_t cols = rounded_.cols;
    pool_.parallel_for(rounded_.rows, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        float* const slopes = slopes_.data() + r * cols;
        changes_[r] = 0;
        for (int64_t c = 0; c < cols; ++c) {
          const float curve = h_[c * cols + c] + added_;
          const GroupScale& group = scale(r, c / grid_.group);
          if (h_[c * cols + c] == 0 || group.scale == 0) continue;
          const int old = code(r, c);
          const float best = value_of(group, old) + slopes[c] / curve;
          const int found = code_of(grid_, group, best);
          if (found == old) continue;
          const float change = value_of(group, found) - value_of(group, old);
          rounded_.codes[r * cols + c] = static_cast<uint8_t>(found);
          ++changes_[r];
          add_scaled(cols, -change, h_ + c * cols, slopes);
          slopes[c] -= change * added_;
        }
      }
    });
    int64_t sum = 0;
    for (const int64_t count : changes_) sum += count;
    return sum;
  }

 private:
  int code(int64_t row, int64_t col) const { return rounded_.codes[row * rounded_.cols + col]; }
  const GroupScale& scale(int64_t row, int64_t group) const {
    return rounded_.scales[row * rounded_.groups + group];
  }

  ThreadPool& pool_;
  const RoundingGrid& grid_;
  const float* w_;
  const float* h_;
  RoundedRows& rounded_;
  float added_ = 0;               // by damping, on the diagonal
  std::vector<float> slopes_;     // [rows, cols]
  std::vector<float> values_;     // [rows, columns of a group]
  std::vector<int64_t> changes_;  // of codes, by row
};

}  // namespace

void refine(ThreadPool& pool, const RoundingGrid& grid, const float* w, const Hessian& hessian,
            double damping, int rounds, RoundedRows& rounded) {
  if (rounds <= 0) return;
  Refinement refinement(pool, grid, w, hessian, damping, rounded);
  for (int i = 0; i < rounds; ++i) {
    refinement.find_slopes();
    refinement.fit_scales();
    if (refinement.fit_codes() == 0) break;
  }
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

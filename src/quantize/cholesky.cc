#include "quantize/cholesky.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "quantize/matrix_product.h"

namespace braid {
namespace {

constexpr int64_t kBlock = 128;
constexpr int64_t kRowGrain = 16;

// Σ x[k] y[k], in four interleaved sums.
double dot(const double* x, const double* y, int64_t count) {
  double sums[4] = {};
  int64_t k = 0;
  for (; k + 4 <= count; k += 4) {
    for (int lane = 0; lane < 4; ++lane) sums[lane] += x[k + lane] * y[k + lane];
  }
  double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  for (; k < count; ++k) sum += x[k] * y[k];
  return sum;
}

bool factor_block(int64_t n, double* a, int64_t stride) {
  for (int64_t j = 0; j < n; ++j) {
    double* const row_j = a + j * stride;
    const double square = row_j[j] - dot(row_j, row_j, j);
    if (!(square > 0) || !std::isfinite(square)) return false;
    const double root = std::sqrt(square);
    row_j[j] = root;
    for (int64_t i = j + 1; i < n; ++i) {
      double* const row_i = a + i * stride;
      row_i[j] = (row_i[j] - dot(row_i, row_j, j)) / root;
    }
  }
  return true;
}

void invert_block(int64_t n, double* l, int64_t stride) {
  // Column by column: x = L⁻¹·e_j.
  for (int64_t j = 0; j < n; ++j) {
    double x[kBlock] = {};
    x[j] = 1 / l[j * stride + j];
    for (int64_t i = j + 1; i < n; ++i) {
      const double sum = dot(l + i * stride + j, x + j, i - j);
      x[i] = -sum / l[i * stride + i];
    }
    // Later columns do not read this one.
    for (int64_t i = j; i < n; ++i) l[i * stride + j] = x[i];
  }
}

// [[A, 0], [B, C]]⁻¹ = [[A⁻¹, 0], [−C⁻¹·B·A⁻¹, C⁻¹]]
void invert(ThreadPool& pool, int64_t n, double* l, int64_t stride, std::vector<double>& scratch) {
  if (n <= kBlock) return invert_block(n, l, stride);
  const int64_t upper = (n / 2 + kBlock - 1) / kBlock * kBlock;
  const int64_t rest = n - upper;
  double* const b = l + upper * stride;
  double* const c = b + upper;
  invert(pool, upper, l, stride, scratch);
  invert(pool, rest, c, stride, scratch);
  // What lies above the diagonal is not to be read as part of a product.
  const auto clear_above = [&](double* matrix, int64_t size) {
    for (int64_t i = 0; i < size; ++i) {
      std::fill(matrix + i * stride + i + 1, matrix + i * stride + size, 0.0);
    }
  };
  clear_above(l, upper);
  clear_above(c, rest);
  scratch.assign(static_cast<size_t>(rest * upper), 0.0);
  add_product(pool, MatrixProduct<double>{.rows = rest,
                                          .cols = upper,
                                          .depth = upper,
                                          .a = b,
                                          .a_row_stride = stride,
                                          .b = l,
                                          .b_depth_stride = stride,
                                          .c = scratch.data(),
                                          .c_stride = upper,
                                          .b_lower = true});
  for (int64_t i = 0; i < rest; ++i) std::fill(b + i * stride, b + i * stride + upper, 0.0);
  add_product(pool, MatrixProduct<double>{.rows = rest,
                                          .cols = upper,
                                          .depth = rest,
                                          .a = c,
                                          .a_row_stride = stride,
                                          .b = scratch.data(),
                                          .b_depth_stride = upper,
                                          .c = b,
                                          .c_stride = stride,
                                          .alpha = -1,
                                          .a_lower = true});
}

}  // namespace

bool factor_cholesky(ThreadPool& pool, int64_t n, double* a) {
  for (int64_t j = 0; j < n; j += kBlock) {
    const int64_t block = std::min(kBlock, n - j);
    double* const diagonal = a + j * n + j;
    if (!factor_block(block, diagonal, n)) return false;
    const int64_t below = j + block;
    // L₂₁ = A₂₁·L₁₁⁻ᵀ, row by row.
    pool.parallel_for(n - below, kRowGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = below + begin; i < below + end; ++i) {
        double* const row = a + i * n + j;
        for (int64_t k = 0; k < block; ++k) {
          row[k] = (row[k] - dot(row, diagonal + k * n, k)) / diagonal[k * n + k];
        }
      }
    });
    add_product(pool, MatrixProduct<double>{.rows = n - below,
                                            .cols = n - below,
                                            .depth = block,
                                            .a = a + below * n + j,
                                            .a_row_stride = n,
                                            .b = a + below * n + j,
                                            .b_depth_stride = 1,
                                            .b_col_stride = n,
                                            .c = a + below * n + below,
                                            .c_stride = n,
                                            .alpha = -1,
                                            .part = MatrixProduct<double>::Part::kLower});
  }
  return true;
}

void invert_lower(ThreadPool& pool, int64_t n, double* l) {
  std::vector<double> scratch;
  invert(pool, n, l, n, scratch);
}

}  // namespace braid

#include "quantize/hessian.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "quantize/cholesky.h"
#include "quantize/cuda/device_gptq.h"
#include "quantize/cuda/matrix_library.h"
#include "quantize/matrix_product.h"

namespace braid {
namespace {

constexpr int64_t kRowGrain = 64;
constexpr int kMaxAttempts = 8;

// Columns of a block of the upper triangle on a device, and matrices up to which there is one.
constexpr int64_t kDeviceBlock = 2048;
constexpr int64_t kOneBlock = 4096;

}  // namespace

std::vector<int32_t> order_columns(std::span<const float> diagonal, ColumnOrder order,
                                   int64_t group) {
  const auto n = static_cast<int64_t>(diagonal.size());
  std::vector<int32_t> columns(static_cast<size_t>(n));
  std::iota(columns.begin(), columns.end(), 0);
  if (order == ColumnOrder::kInPlace) return columns;
  const auto larger = [&](int32_t a, int32_t b) { return diagonal[a] > diagonal[b]; };
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
    for (int64_t i = 0; i < one.count; ++i) one.sum += diagonal[first + i];
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

Hessian::Hessian(int64_t cols, Device device)
    : cols_(cols), sums_(static_cast<size_t>(cols * cols) * sizeof(float), device) {}

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

void Hessian::add(Stream& stream, Workspace& workspace, const TensorView& x) {
  BRAID_CHECK(
      x.rank() == 2 && x.dim(1) == cols_ && x.device() == device() && stream.device() == device(),
      "inputs {} for {} columns", to_string(x.shape()), cols_);
  const int64_t count = x.dim(0);
  if (device().is_cpu()) return add(stream.pool(), x.data<float>(), count, x.row_stride());
  num_inputs_ += count;
  if (x.dtype() == DType::kBF16) return add_blocks(stream, x.raw(), x.raw(), count, x.row_stride());
  const Workspace::Scope scope(workspace);
  const int64_t stride = (cols_ + 63) / 64 * 64;
  const TensorView high = workspace.take(DType::kBF16, {count, stride});
  const TensorView low = workspace.take(DType::kBF16, {count, stride});
  cuda::split(stream, x.data<float>(), count, cols_, x.row_stride(),
              {static_cast<uint16_t*>(high.raw()), static_cast<uint16_t*>(low.raw()), stride});
  add_blocks(stream, high.raw(), high.raw(), count, stride);
  add_blocks(stream, high.raw(), low.raw(), count, stride);
  add_blocks(stream, low.raw(), high.raw(), count, stride);
}

// The upper triangle of Aᵀ·B, in bfloat16: [count, cols].
void Hessian::add_blocks(Stream& stream, const void* a, const void* b, int64_t count,
                         int64_t stride) {
  const int64_t block = cols_ <= kOneBlock ? cols_ : kDeviceBlock;
  const auto columns = [](const void* from, int64_t first) {
    return static_cast<const uint16_t*>(from) + first;
  };
  for (int64_t first = 0; first < cols_; first += block) {
    cuda::multiply(stream, {.type = cuda::ProductType::kBF16,
                            .rows = std::min(block, cols_ - first),
                            .cols = cols_ - first,
                            .depth = count,
                            .a = columns(a, first),
                            .a_stride = stride,
                            .a_transposed = true,
                            .b = columns(b, first),
                            .b_stride = stride,
                            .c = sums() + first * cols_ + first,
                            .c_stride = cols_,
                            .beta = 1});
  }
}

void Hessian::add_source(Stream& stream, Workspace& workspace, const TensorView& y,
                         const TensorView& x) {
  BRAID_CHECK(y.rank() == 2 && y.shape() == x.shape() && x.dim(1) == cols_ &&
                  y.dtype() == x.dtype() && y.device() == device() && x.device() == device(),
              "inputs {} beside {}", to_string(y.shape()), to_string(x.shape()));
  const int64_t count = x.dim(0);
  if (!source_) source_.emplace(sums_.size_bytes(), device());
  if (device().is_cpu()) {
    return add_product(stream.pool(), MatrixProduct<float>{.rows = cols_,
                                                           .cols = cols_,
                                                           .depth = count,
                                                           .a = y.data<float>(),
                                                           .a_row_stride = 1,
                                                           .a_depth_stride = y.row_stride(),
                                                           .b = x.data<float>(),
                                                           .b_depth_stride = x.row_stride(),
                                                           .c = sums_of(*source_),
                                                           .c_stride = cols_});
  }
  const auto add = [&](const void* a, int64_t a_stride, const void* b, int64_t b_stride) {
    cuda::multiply(stream, {.type = cuda::ProductType::kBF16,
                            .rows = cols_,
                            .cols = cols_,
                            .depth = count,
                            .a = a,
                            .a_stride = a_stride,
                            .a_transposed = true,
                            .b = b,
                            .b_stride = b_stride,
                            .c = sums_of(*source_),
                            .c_stride = cols_,
                            .beta = 1});
  };
  if (x.dtype() == DType::kBF16) return add(y.raw(), y.row_stride(), x.raw(), x.row_stride());
  const Workspace::Scope scope(workspace);
  const int64_t stride = (cols_ + 63) / 64 * 64;
  const auto parts_of = [&](const TensorView& of) {
    const TensorView high = workspace.take(DType::kBF16, {count, stride});
    const TensorView low = workspace.take(DType::kBF16, {count, stride});
    cuda::SplitRows parts{static_cast<uint16_t*>(high.raw()), static_cast<uint16_t*>(low.raw()),
                          stride};
    cuda::split(stream, of.data<float>(), count, cols_, of.row_stride(), parts);
    return parts;
  };
  const cuda::SplitRows ys = parts_of(y), xs = parts_of(x);
  add(ys.high, stride, xs.high, stride);
  add(ys.high, stride, xs.low, stride);
  add(ys.low, stride, xs.high, stride);
}

void Hessian::finish(Stream& stream) {
  if (device().is_cpu()) return finish(stream.pool());
  cuda::finish_hessian(stream, sums(), cols_, factor());
}

void Hessian::finish(ThreadPool& pool) {
  const float scale = factor();
  float* const h = sums();
  const int64_t n = cols_;
  pool.parallel_for(n, kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = i; j < n; ++j) h[i * n + j] *= scale;
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

double damp_until_factored(double damping, int64_t cols,
                           const std::function<bool(double damping)>& factor) {
  for (int attempt = 0; !factor(damping); ++attempt) {
    if (attempt == kMaxAttempts) {
      throw Error(
          "a Hessian of {} columns has no factor, even with damping {}: its inputs are not finite",
          cols, damping);
    }
    damping = std::max(10 * damping, 1e-4);
  }
  return damping;
}

InverseFactor invert_hessian(ThreadPool& pool, const Hessian& hessian, double damping,
                             ColumnOrder order, int64_t group) {
  const int64_t n = hessian.cols();
  const float* const h = hessian.data();
  InverseFactor result;
  std::vector<float> diagonal(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) diagonal[i] = hessian.diagonal(i);
  result.order = order_columns(diagonal, order, group);
  double mean = 0;
  for (const float value : diagonal) {
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
  result.damping = damp_until_factored(damping, n, [&](double share) {
    fill(share * mean);
    return factor_cholesky(pool, n, lower.data());
  });
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

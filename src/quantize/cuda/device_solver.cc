#include "quantize/cuda/device_solver.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/check.h"
#include "quant/panels.h"
#include "quantize/cuda/device_gptq.h"
#include "quantize/cuda/matrix_library.h"
#include "tensor/cuda/stream_state.h"

namespace braid::cuda {
namespace {

constexpr int64_t kAlignment = 64;  // elements
// Columns whose losses reach the later ones together; within them, kRoundedColumns at a time.
constexpr int64_t kOuterColumns = 512;
// From this depth on a product takes the tensor cores: below, reading and writing C three times is
// no faster than one product in float32.
constexpr int64_t kLeastSplitDepth = 256;

int64_t padded(int64_t count) { return (count + kAlignment - 1) / kAlignment * kAlignment; }

// A float32 matrix, and what it is split into if the tensor cores are to read it.
struct Matrix {
  const float* values = nullptr;
  int64_t stride = 0;
  SplitRows parts;

  Matrix at(int64_t row, int64_t col) const {
    Matrix result = *this;
    result.values += row * stride + col;
    if (parts.high != nullptr) {
      result.parts.high += row * parts.stride + col;
      result.parts.low += row * parts.stride + col;
    }
    return result;
  }
};

class DeviceSolver : public HessianSolver {
 public:
  DeviceSolver(Stream& stream, Workspace& workspace, const Hessian& hessian, bool exact)
      : stream_(stream),
        workspace_(workspace),
        scope_(workspace),
        exact_(exact),
        n_(hessian.cols()),
        diagonal_(static_cast<size_t>(n_)) {
    const float* const diagonal = take_floats(n_);
    take_diagonal(stream_, hessian.data(), n_, const_cast<float*>(diagonal));
    download(diagonal_.data(), diagonal, diagonal_.size() * sizeof(float));
    for (const float value : diagonal_) mean_ += value / static_cast<double>(n_);
    device_diagonal_ = diagonal;
    counter_ = static_cast<int32_t*>(workspace_.take(DType::kI32, {1}).raw());
    hessian_ = with_parts(hessian.data(), n_, n_, n_);
    source_sums_ = hessian.source_sums();
    source_factor_ = hessian.factor();
  }

  Inverse invert(double damping, ColumnOrder order, int64_t group) override {
    matrix_scope_.reset();
    Inverse result{.damping = damping};
    for (const float value : diagonal_) result.num_dead_columns += value == 0 ? 1 : 0;
    order_ = order_columns(diagonal_, order, group);
    if (device_order_ == nullptr) {
      device_order_ = static_cast<int32_t*>(workspace_.take(DType::kI32, {n_}).raw());
      ordered_diagonal_ = take_floats(n_);
      factor_values_ = take_floats(n_ * n_);
      if (!exact_) factor_parts_ = take_parts(n_, n_);
    }
    upload(device_order_, order_.data(), order_.size() * sizeof(int32_t));
    std::vector<float> ordered(order_.size());
    for (size_t i = 0; i < ordered.size(); ++i) ordered[i] = diagonal_[order_[i]];
    upload(ordered_diagonal_, ordered.data(), ordered.size() * sizeof(float));
    {
      const Workspace::Scope scope(workspace_);
      const int64_t stride = padded(n_);
      const TensorView lower = workspace_.take(DType::kF64, {n_, stride});
      const TensorView scratch = workspace_.take(DType::kF64, {inverse_scratch(n_)});
      result.damping = damp_until_factored(damping, n_, [&](double share) {
        fill_reversed(stream_, hessian_.values, device_order_, n_, share * (mean_ == 0 ? 1 : mean_),
                      lower.data<double>(), stride);
        set_counter(0);
        invert_factor(stream_, lower.data<double>(), n_, stride, scratch.data<double>(), counter_);
        return counter() == 0;
      });
      take_upper(stream_, lower.data<double>(), n_, stride, factor_values_);
    }
    factor_ = {.values = factor_values_, .stride = n_, .parts = factor_parts_};
    if (!exact_) split(stream_, factor_values_, n_, n_, n_, factor_parts_);
    damping_ = result.damping;
    return result;
  }

  void load(const RoundingGrid& grid, const Weight& weight, int64_t first_row,
            int64_t rows) override {
    BRAID_CHECK(weight.cols() == n_, "{} columns, but the Hessian has {}", weight.cols(), n_);
    matrix_scope_.reset();
    matrix_scope_.emplace(workspace_);
    group_ = grid.group;
    // Keeps its memory from matrix to matrix.
    host_.rows = rows;
    host_.cols = n_;
    host_.groups = grid.groups(n_);
    host_.codes.resize(static_cast<size_t>(rows * n_));
    host_.scales.resize(static_cast<size_t>(rows * host_.groups));
    output_.reset();
    float* const w = take_floats(rows * n_);
    w_ = target_ = w;
    if (source_sums_ != nullptr) aimed_ = take_floats(rows * n_);
    rows_ = {.grid = device_grid(grid), .rows = rows, .cols = n_, .groups = host_.groups};
    rows_.codes =
        static_cast<uint8_t*>(workspace_.take(DType::kU8, {std::max<int64_t>(rows * n_, 1)}).raw());
    const auto scale_bytes = static_cast<int64_t>(host_.scales.size() * sizeof(GroupScale));
    rows_.scales = static_cast<GroupScale*>(workspace_.take(DType::kU8, {scale_bytes}).raw());
    copy_weight(weight, first_row, rows, w);
  }

  void round_to_nearest(bool search) override {
    fit_scales(stream_, rows_, w_, nullptr, search);
    round_codes(stream_, rows_, w_);
  }

  void round_gptq(const GptqOptions& options) override {
    BRAID_CHECK(factor_.values != nullptr, "no inverse");
    const Workspace::Scope scope(workspace_);
    const int64_t rows = rows_.rows;
    const bool fit_first = options.order == ColumnOrder::kBySize;
    if (source_sums_ != nullptr) aim();
    if (fit_first) fit_scales(stream_, rows_, target_, device_diagonal_, options.search_scales);
    float* const left = take_floats(rows * n_);
    permute_columns(stream_, target_, device_order_, rows, n_, left);
    const Columns losses = take_columns(kOuterColumns);
    for (int64_t outer = 0; outer < n_; outer += kOuterColumns) {
      const int64_t end = std::min(outer + kOuterColumns, n_);
      for (int64_t first = outer; first < end; first += kRoundedColumns) {
        const int64_t next = std::min(first + kRoundedColumns, end);
        round_columns(stream_, rows_,
                      {.first = first,
                       .count = next - first,
                       .order = device_order_,
                       .factor = factor_.values,
                       .left = left,
                       .losses = losses.values + first - outer,
                       .losses_stride = losses.stride,
                       .importance = fit_first ? nullptr : ordered_diagonal_,
                       .search = options.search_scales});
        subtract_product(losses, first - outer, next - first, factor_.at(first, next), end - next,
                         left + next);
      }
      subtract_product(losses, 0, end - outer, factor_.at(outer, end), n_ - end, left + end);
    }
    refine(options.refinements);
  }

  RoundingError rounding_error() override {
    const Workspace::Scope scope(workspace_);
    float* const losses = take_floats(rows_.rows * n_);
    take_losses(stream_, rows_, target_, losses);
    if (!output_) output_ = half_trace(w_);
    return {.error = half_trace(losses), .output = *output_};
  }

  WeightError weight_error() override {
    const Workspace::Scope scope(workspace_);
    float* const losses = take_floats(rows_.rows * n_);
    take_losses(stream_, rows_, w_, losses);
    return {.error = dot(losses, losses), .square = dot(w_, w_)};
  }

  const RoundedRows& rounded() override {
    download(host_.codes.data(), rows_.codes, host_.codes.size());
    download(host_.scales.data(), rows_.scales, host_.scales.size() * sizeof(GroupScale));
    return host_;
  }

 private:
  // Some columns of all rows.
  struct Columns {
    float* values = nullptr;
    int64_t stride = 0;
    SplitRows parts;
  };

  float* take_floats(int64_t count) {
    return workspace_.take(DType::kF32, {std::max<int64_t>(count, 1)}).data<float>();
  }
  SplitRows take_parts(int64_t rows, int64_t cols) {
    const int64_t stride = padded(cols);
    const auto part = [&] {
      return static_cast<uint16_t*>(workspace_.take(DType::kBF16, {rows, stride}).raw());
    };
    uint16_t* const high = part();
    return {.high = high, .low = part(), .stride = stride};
  }
  Matrix with_parts(const float* values, int64_t rows, int64_t cols, int64_t stride) {
    Matrix matrix{.values = values, .stride = stride};
    if (exact_) return matrix;
    matrix.parts = take_parts(rows, cols);
    split(stream_, values, rows, cols, stride, matrix.parts);
    return matrix;
  }
  Columns take_columns(int64_t count) {
    const int64_t stride = padded(std::min(count, n_));
    Columns columns{.values = take_floats(rows_.rows * stride), .stride = stride};
    if (!exact_) columns.parts = take_parts(rows_.rows, stride);
    return columns;
  }

  void upload(void* to, const void* from, size_t bytes) {
    copy_to_device_async(stream_.cuda(), to, from, bytes);
    stream_.synchronize();
  }
  void download(void* to, const void* from, size_t bytes) {
    copy_to_host_async(stream_.cuda(), to, from, bytes);
    stream_.synchronize();
  }
  void set_counter(int32_t value) { upload(counter_, &value, sizeof(value)); }
  int32_t counter() {
    int32_t value = 0;
    download(&value, counter_, sizeof(value));
    return value;
  }

  void copy_weight(const Weight& weight, int64_t first_row, int64_t rows, float* to) {
    const FormatId type = weight.format->id;
    if (type == FormatId::kF32 || type == FormatId::kF16 || type == FormatId::kBF16) {
      const Workspace::Scope scope(workspace_);
      const int64_t bytes = rows * weight.row_bytes();
      const TensorView stored = workspace_.take(DType::kU8, {bytes});
      upload(stored.raw(), weight.row(first_row), static_cast<size_t>(bytes));
      return expand(stream_, type, stored.raw(), rows * n_, to);
    }
    std::vector<float> values(static_cast<size_t>(rows * n_));
    stream_.pool().parallel_for(rows, 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        expand_row(weight, first_row + r, values.data() + r * n_);
      }
    });
    upload(to, values.data(), values.size() * sizeof(float));
  }

  // c = alpha · x·m + beta · c, for all rows; x has depth columns, c has cols, rows of all c_stride
  // apart. parts: room for those of x, or none.
  struct Product {
    const float* x = nullptr;
    int64_t x_stride = 0;
    SplitRows parts;
    int64_t depth = 0;
    Matrix m;
    int64_t cols = 0;
    float* c = nullptr;
    int64_t c_stride = 0;
    double alpha = 1, beta = 0;
  };
  void multiply_rows(const Product& p) {
    if (p.cols <= 0 || p.depth <= 0) return;
    DeviceProduct product{.rows = rows_.rows,
                          .cols = p.cols,
                          .depth = p.depth,
                          .a = p.x,
                          .a_stride = p.x_stride,
                          .b = p.m.values,
                          .b_stride = p.m.stride,
                          .c = p.c,
                          .c_stride = p.c_stride,
                          .alpha = p.alpha,
                          .beta = p.beta};
    if (exact_ || p.parts.high == nullptr || p.depth < kLeastSplitDepth) {
      return multiply(stream_, product);
    }
    split(stream_, p.x, rows_.rows, p.depth, p.x_stride, p.parts);
    product.type = ProductType::kBF16;
    product.a_stride = p.parts.stride;
    product.b_stride = p.m.parts.stride;
    const auto add = [&](const uint16_t* a, const uint16_t* b) {
      product.a = a;
      product.b = b;
      multiply(stream_, product);
      product.beta = 1;
    };
    add(p.parts.high, p.m.parts.high);
    add(p.parts.high, p.m.parts.low);
    add(p.parts.low, p.m.parts.high);
  }

  // c −= x·m, of columns [first, first + depth) of x; c as wide as all rows.
  void subtract_product(const Columns& x, int64_t first, int64_t depth, const Matrix& m,
                        int64_t cols, float* c) {
    multiply_rows({.x = x.values + first,
                   .x_stride = x.stride,
                   .parts = x.parts,
                   .depth = depth,
                   .m = m,
                   .cols = cols,
                   .c = c,
                   .c_stride = n_,
                   .alpha = -1,
                   .beta = 1});
  }

  // y = x·H + beta · y, of whole rows.
  void multiply_by_hessian(const float* x, float* y, double beta) {
    const Workspace::Scope scope(workspace_);
    Product product{.x = x,
                    .x_stride = n_,
                    .depth = n_,
                    .m = hessian_,
                    .cols = n_,
                    .c = y,
                    .c_stride = n_,
                    .beta = beta};
    if (!exact_) product.parts = take_parts(rows_.rows, n_);
    multiply_rows(product);
  }

  double dot(const float* x, const float* y) {
    const Workspace::Scope scope(workspace_);
    const TensorView sums = workspace_.take(DType::kF64, {rows_.rows});
    row_dots(stream_, x, y, rows_.rows, n_, sums.data<double>());
    std::vector<double> rows(static_cast<size_t>(rows_.rows));
    download(rows.data(), sums.raw(), rows.size() * sizeof(double));
    double sum = 0;
    for (const double row : rows) sum += row;
    return sum;
  }

  // ½ Σ_r x_r·H·x_rᵀ
  double half_trace(const float* x) {
    const Workspace::Scope scope(workspace_);
    float* const products = take_floats(rows_.rows * n_);
    multiply_by_hessian(x, products, 0);
    return std::max(0.0, dot(x, products) / 2);
  }

  // As aimed_weights(), with products in float32.
  void aim() {
    const Workspace::Scope scope(workspace_);
    const int64_t size = rows_.rows * n_;
    float* const slopes = take_floats(size);
    float* const ordered = take_floats(size);
    DeviceProduct product{.rows = rows_.rows,
                          .cols = n_,
                          .depth = n_,
                          .a = w_,
                          .a_stride = n_,
                          .b_stride = n_,
                          .c_stride = n_};
    const auto times = [&](const float* b, float* c, double alpha, double beta) {
      product.b = b;
      product.c = c;
      product.alpha = alpha;
      product.beta = beta;
      multiply(stream_, product);
    };
    {
      // C − H, of which W·(C − H) would be the small difference of large numbers.
      const Workspace::Scope drift_scope(workspace_);
      float* const drift = take_floats(n_ * n_);
      subtract_scaled(stream_, source_sums_, hessian_.values, n_ * n_, source_factor_, drift);
      times(drift, slopes, 1, 0);
    }
    permute_columns(stream_, slopes, device_order_, rows_.rows, n_, ordered);
    // ·H'⁻¹ = ·Uᵀ·U, in the order of the factor.
    product.a = ordered;
    product.b_transposed = true;
    times(factor_.values, slopes, 1, 0);
    product.a = slopes;
    product.b_transposed = false;
    times(factor_.values, ordered, 1, 0);
    add_permuted(stream_, w_, ordered, device_order_, rows_.rows, n_, aimed_);
    target_ = aimed_;
  }

  // As braid::refine(), with slopes S = (W − Q)·H'.
  void refine(int rounds) {
    if (rounds <= 0) return;
    const Workspace::Scope scope(workspace_);
    slopes_ = take_floats(rows_.rows * n_);
    added_ = static_cast<float>(damping_ * mean_);
    for (int round = 0; round < rounds; ++round) {
      {
        const Workspace::Scope losses_scope(workspace_);
        float* const losses = take_floats(rows_.rows * n_);
        take_losses(stream_, rows_, target_, losses);
        scale_to(stream_, losses, rows_.rows * n_, added_, slopes_);
        multiply_by_hessian(losses, slopes_, 1);
      }
      refine_scales();
      if (refine_codes() == 0) break;
    }
  }

  // Group by group; what a group changes reaches the others of some columns at once, and the rest
  // with these together.
  void refine_scales() {
    const Workspace::Scope scope(workspace_);
    const int64_t width = std::min(group_, n_);
    const int64_t together = std::max<int64_t>(kOuterColumns / width, 1);
    const Columns changes = take_columns(together * width);
    float* const products = take_floats(rows_.rows * width);
    for (int64_t outer = 0; outer < rows_.groups; outer += together) {
      const int64_t begin = outer * width;
      const int64_t end = std::min((outer + together) * width, n_);
      for (int64_t g = outer; g * width < end; ++g) {
        const int64_t first = g * width, count = std::min(width, n_ - first);
        float* const c = changes.values + first - begin;
        take_centred(stream_, rows_, g, c, changes.stride);
        multiply_rows({.x = c,
                       .x_stride = changes.stride,
                       .parts = changes.parts,
                       .depth = count,
                       .m = hessian_.at(first, first),
                       .cols = count,
                       .c = products,
                       .c_stride = count});
        step_scales(stream_, rows_,
                    {.group = g,
                     .c = c,
                     .c_stride = changes.stride,
                     .products = products,
                     .slopes = slopes_,
                     .added = added_});
        subtract_product(changes, first - begin, count, hessian_.at(first, begin), end - begin,
                         slopes_ + begin);
      }
      subtract_product(changes, 0, end - begin, hessian_.at(begin, 0), begin, slopes_);
      subtract_product(changes, 0, end - begin, hessian_.at(begin, end), n_ - end, slopes_ + end);
    }
  }

  // How many codes changed.
  int32_t refine_codes() {
    const Workspace::Scope scope(workspace_);
    const Columns changes = take_columns(kOuterColumns);
    set_counter(0);
    for (int64_t outer = 0; outer < n_; outer += kOuterColumns) {
      const int64_t end = std::min(outer + kOuterColumns, n_);
      for (int64_t first = outer; first < end; first += kRoundedColumns) {
        const int64_t next = std::min(first + kRoundedColumns, end);
        step_codes(stream_, rows_,
                   {.first = first,
                    .count = next - first,
                    .hessian = hessian_.values,
                    .added = added_,
                    .slopes = slopes_,
                    .changes = changes.values + first - outer,
                    .changes_stride = changes.stride,
                    .num_changed = counter_});
        subtract_product(changes, first - outer, next - first, hessian_.at(first, next), end - next,
                         slopes_ + next);
      }
      subtract_product(changes, 0, end - outer, hessian_.at(outer, end), n_ - end, slopes_ + end);
    }
    return counter();
  }

  Stream& stream_;
  Workspace& workspace_;
  Workspace::Scope scope_;
  bool exact_;
  int64_t n_;
  std::vector<float> diagonal_;
  double mean_ = 0;
  const float* device_diagonal_ = nullptr;
  int32_t* counter_ = nullptr;
  Matrix hessian_;

  std::vector<int32_t> order_;
  int32_t* device_order_ = nullptr;
  float* ordered_diagonal_ = nullptr;
  float* factor_values_ = nullptr;
  SplitRows factor_parts_;
  Matrix factor_;
  double damping_ = 0;

  std::optional<Workspace::Scope> matrix_scope_;
  int64_t group_ = 0;
  RoundedRows host_;
  const float* w_ = nullptr;
  const float* target_ = nullptr;  // what is rounded: w_, or aimed_
  float* aimed_ = nullptr;
  const float* source_sums_ = nullptr;
  float source_factor_ = 0;
  DeviceRows rows_;
  std::optional<double> output_;
  float* slopes_ = nullptr;
  float added_ = 0;
};

}  // namespace

std::unique_ptr<HessianSolver> make_device_solver(Stream& stream, Workspace& workspace,
                                                  const Hessian& hessian,
                                                  const SolverOptions& options) {
  return std::make_unique<DeviceSolver>(stream, workspace, hessian, options.exact);
}

}  // namespace braid::cuda

#include "quantize/hessian_solver.h"

#include <optional>
#include <vector>

#include "quant/panels.h"
#include "quantize/cuda/device_solver.h"

namespace braid {
namespace {

constexpr int64_t kRowGrain = 16;

class HostSolver : public HessianSolver {
 public:
  HostSolver(ThreadPool& pool, const Hessian& hessian) : pool_(pool), hessian_(hessian) {}

  Inverse invert(double damping, ColumnOrder order, int64_t group) override {
    inverse_ = invert_hessian(pool_, hessian_, damping, order, group);
    return {inverse_->damping, inverse_->num_dead_columns};
  }

  void load(const RoundingGrid& grid, const Weight& weight, int64_t first_row,
            int64_t rows) override {
    const int64_t cols = weight.cols();
    grid_ = grid;
    rows_ = rows;
    w_.resize(static_cast<size_t>(rows * cols));
    aimed_.clear();
    pool_.parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) expand_row(weight, first_row + r, w_.data() + r * cols);
    });
  }

  void round_to_nearest(bool search) override {
    rounded_ =
        braid::round_to_nearest(pool_, grid_, w_.data(), rows_, hessian_.cols(), nullptr, search);
  }

  void round_gptq(const GptqOptions& options) override {
    if (hessian_.source_sums() != nullptr) {
      aimed_ = aimed_weights(pool_, w_.data(), rows_, hessian_, *inverse_);
    }
    rounded_ = braid::round_gptq(pool_, grid_, target(), rows_, hessian_, *inverse_, options);
    refine(pool_, grid_, target(), hessian_, inverse_->damping, options.refinements, rounded_);
  }

  RoundingError rounding_error() override {
    return braid::rounding_error(pool_, grid_, target(), rounded_, hessian_);
  }

  WeightError weight_error() override { return braid::weight_error(pool_, grid_, w_, rounded_); }

  const RoundedRows& rounded() override { return rounded_; }

 private:
  // What is rounded.
  const float* target() const { return aimed_.empty() ? w_.data() : aimed_.data(); }

  ThreadPool& pool_;
  const Hessian& hessian_;
  std::optional<InverseFactor> inverse_;
  RoundingGrid grid_;
  int64_t rows_ = 0;
  std::vector<float> w_, aimed_;
  RoundedRows rounded_;
};

}  // namespace

WeightError weight_error(ThreadPool& pool, const RoundingGrid& grid, std::span<const float> w,
                         const RoundedRows& rounded) {
  const int64_t cols = rounded.cols;
  std::vector<WeightError> rows(static_cast<size_t>(rounded.rows));
  pool.parallel_for(rounded.rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const float x = w[r * cols + c];
        const double e = x - value_of(rounded.scales[r * rounded.groups + c / grid.group],
                                      rounded.codes[r * cols + c]);
        rows[r].error += e * e;
        rows[r].square += double{x} * x;
      }
    }
  });
  WeightError sum;
  for (const WeightError& row : rows) {
    sum.error += row.error;
    sum.square += row.square;
  }
  return sum;
}

std::unique_ptr<HessianSolver> HessianSolver::make(Stream& stream, Workspace& workspace,
                                                   const Hessian& hessian,
                                                   const SolverOptions& options) {
  if (stream.is_cpu()) return std::make_unique<HostSolver>(stream.pool(), hessian);
  return cuda::make_device_solver(stream, workspace, hessian, options);
}

}  // namespace braid

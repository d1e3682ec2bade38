#include "quantize/part_quantizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "base/error.h"
#include "checkpoint/printable.h"
#include "quant/panels.h"
#include "quantize/block_rounding.h"
#include "quantize/hessian_solver.h"
#include "quantize/phase_timer.h"

namespace braid {
namespace {

constexpr int64_t kRowGrain = 16;

Weight allocate(const TensorPlan& plan) {
  Weight weight;
  weight.format = plan.format;
  weight.shape = plan.shape;
  const auto buffer = std::make_shared<Buffer>(static_cast<size_t>(weight.size_bytes()), Device{});
  weight.data = buffer->data();
  weight.owner = buffer;
  return weight;
}

class PartQuantizer {
 public:
  PartQuantizer(Stream& stream, Workspace& workspace, const WeightMap& weights,
                const QuantizeOptions& options, const LayerHessians* hessians, PhaseTimes& times)
      : stream_(stream),
        workspace_(workspace),
        pool_(stream.pool()),
        weights_(weights),
        options_(options),
        hessians_(hessians),
        times_(times) {}

  WorkFolder::Part run(const std::vector<const TensorPlan*>& plans) {
    WorkFolder::Part part;
    // Matrices by the Hessian they share, so that it is factored once and forgotten then.
    std::map<std::pair<LayerHessians::Family*, size_t>, std::vector<Matrix>> by_hessian;
    std::vector<Matrix> unseen, without_grid;
    std::map<const TensorPlan*, MatrixResult> results;
    for (const TensorPlan* plan : plans) {
      MatrixResult& result = results[plan];
      result.name = plan->name;
      result.format = plan->per_row ? std::string(plan->format->name) + " per row"
                                    : std::string(plan->format->name);
      const Weight& weight = part.weights.emplace(plan->name, allocate(*plan)).first->second;
      const int64_t matrices = plan->shape.rank() == 3 ? plan->shape.dim(0) : 1;
      for (int64_t m = 0; m < matrices; ++m) {
        const Matrix matrix{plan, m, &weight, &result};
        if (!has_grid(*plan) || plan->column_run != 0) {
          without_grid.push_back(matrix);
          continue;
        }
        LayerHessians::Reader reader;
        if (hessians_ != nullptr) reader = hessians_->find(plan->name, static_cast<size_t>(m));
        if (reader.family == nullptr || (*reader.family)[reader.member] == nullptr) {
          unseen.push_back(matrix);
        } else {
          by_hessian[{reader.family.get(), reader.member}].push_back(matrix);
        }
      }
    }
    for (auto& [reader, matrices] : by_hessian) {
      std::unique_ptr<Hessian>& hessian = (*reader.first)[reader.second];
      quantise_with(*hessian, matrices);
      hessian.reset();
    }
    for (const Matrix& matrix : unseen) quantise_unseen(matrix);
    for (const Matrix& matrix : without_grid) round_matrix(matrix);
    for (const TensorPlan* plan : plans) {
      MatrixResult& result = results[plan];
      result.method = method_of(*plan, result);
      part.results.push_back(std::move(result));
    }
    return part;
  }

 private:
  struct Matrix {
    const TensorPlan* plan;
    int64_t index;  // in its stack
    const Weight* to;
    MatrixResult* result;

    int64_t rows() const { return plan->shape.dim(-2); }
    int64_t cols() const { return plan->cols(); }
    bool expert() const { return plan->kind == ModuleKind::kExperts; }
    int64_t expert_index() const {
      const auto one = expert_name(plan->name);
      return one ? one->expert : index;
    }
  };

  std::string method_of(const TensorPlan& plan, const MatrixResult& result) const {
    if (options_.method == QuantizeMethod::kNearest || gptq_matrices_[&plan] == 0) return "rtn";
    if (result.starved.empty()) return "gptq";
    return fmt::format("gptq, {} experts rtn", result.starved.size());
  }

  std::vector<float> load(const Matrix& matrix) const {
    const Weight source = weights_.find(matrix.plan->name)->payload();
    const std::vector<int64_t>& runs = matrix.plan->column_runs;
    const int64_t run = matrix.plan->column_run;
    const int64_t rows = matrix.rows(), cols = matrix.cols();
    std::vector<float> w(static_cast<size_t>(rows * cols));
    pool_.parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
      std::vector<float> given(run != 0 ? static_cast<size_t>(cols) : 0);
      for (int64_t r = begin; r < end; ++r) {
        float* const row = w.data() + r * cols;
        expand_row(source, matrix.index * rows + r, run != 0 ? given.data() : row);
        for (size_t i = 0; i < runs.size(); ++i) {
          std::copy_n(given.data() + runs[i] * run, run, row + static_cast<int64_t>(i) * run);
        }
      }
    });
    return w;
  }

  // As the reference quantisers round.
  RoundedRows nearest(const Matrix& matrix, const std::vector<float>& w) {
    return round_to_nearest(pool_, grid_of(*matrix.plan), w.data(), matrix.rows(), matrix.cols(),
                            nullptr, options_.search_scales);
  }

  void store(const Matrix& matrix, const RoundedRows& rounded, const WeightError& error) {
    const RoundingGrid grid = grid_of(*matrix.plan);
    const int64_t rows = matrix.rows(), row_bytes = matrix.to->row_bytes();
    // The buffer is this part's own.
    auto* const to = const_cast<std::byte*>(matrix.to->data) + matrix.index * rows * row_bytes;
    pool_.parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) pack_row(grid, rounded, r, to + r * row_bytes);
    });
    add_error(matrix, error);
  }

  static void add(std::optional<RoundingError>& sum, const RoundingError& one, double share) {
    if (!sum) sum = RoundingError();
    sum->error += share * one.error;
    sum->output += share * one.output;
  }

  bool is_starved(const Matrix& matrix, int64_t num_inputs) const {
    return matrix.expert() &&
           static_cast<double>(num_inputs) <
               options_.min_inputs_per_column * static_cast<double>(matrix.cols());
  }

  void quantise_with(Hessian& hessian, const std::vector<Matrix>& matrices) {
    {
      const PhaseTimer timer(stream_, times_.hessian);
      hessian.finish(stream_);
      timer.stop();
    }
    const auto solver = HessianSolver::make(
        stream_, workspace_, hessian, {.exact = options_.precision == ActivationPrecision::kF32});
    HessianSolver::Inverse inverse;
    int64_t inverse_group = 0;
    for (const Matrix& matrix : matrices) {
      const RoundingGrid grid = grid_of(*matrix.plan);
      MatrixResult& result = *matrix.result;
      result.num_inputs += hessian.num_inputs();
      const bool starved = is_starved(matrix, hessian.num_inputs());
      if (starved) result.starved.push_back({matrix.expert_index(), hessian.num_inputs()});
      const bool gptq = options_.method == QuantizeMethod::kGptq && !starved;
      if (gptq && inverse_group != grid.group) {
        inverse_group = grid.group;
        const PhaseTimer timer(stream_, times_.factor);
        inverse = solver->invert(options_.gptq.damping, options_.gptq.order, grid.group);
        timer.stop();
      }
      {
        const PhaseTimer timer(stream_, times_.load);
        solver->load(grid, weights_.find(matrix.plan->name)->payload(),
                     matrix.index * matrix.rows(), matrix.rows());
        timer.stop();
      }
      {
        // As the reference quantisers round.
        const PhaseTimer timer(stream_, times_.round);
        solver->round_to_nearest(options_.search_scales);
        timer.stop();
      }
      RoundingError error = compare(*solver);
      const auto share = static_cast<double>(hessian.num_inputs());
      add(result.nearest, error, share);
      if (gptq) {
        result.damping = std::max(result.damping, inverse.damping);
        result.num_dead_columns += inverse.num_dead_columns;
        ++gptq_matrices_[matrix.plan];
        {
          const PhaseTimer timer(stream_, times_.round);
          solver->round_gptq(options_.gptq);
          timer.stop();
        }
        error = compare(*solver);
      }
      add(result.stored, error, share);
      const PhaseTimer timer(stream_, times_.pack);
      store(matrix, solver->rounded(), solver->weight_error());
    }
  }

  RoundingError compare(HessianSolver& solver) {
    const PhaseTimer timer(stream_, times_.compare);
    return solver.rounding_error();
  }

  void quantise_unseen(const Matrix& matrix) {
    if (hessians_ != nullptr && matrix.expert()) {
      matrix.result->starved.push_back({matrix.expert_index(), 0});
    }
    const std::vector<float> w = load(matrix);
    const PhaseTimer timer(stream_, times_.round);
    const RoundedRows rounded = nearest(matrix, w);
    store(matrix, rounded, weight_error(pool_, grid_of(*matrix.plan), w, rounded));
  }

  // Into blocks that have a rounding of their own.
  void round_matrix(const Matrix& matrix) {
    const std::vector<float> w = load(matrix);
    const PhaseTimer timer(stream_, times_.round);
    const int64_t rows = matrix.rows(), cols = matrix.cols();
    const int64_t row_bytes = matrix.to->row_bytes();
    auto* const to = const_cast<std::byte*>(matrix.to->data) + matrix.index * rows * row_bytes;
    std::vector<WeightError> errors(static_cast<size_t>(rows));
    pool_.parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
      std::vector<float> stored(static_cast<size_t>(cols));
      for (int64_t r = begin; r < end; ++r) {
        round_blocks(*matrix.plan->format, w.data() + r * cols, cols, to + r * row_bytes);
        dequantize(*matrix.plan->format, to + r * row_bytes, cols, stored.data());
        for (int64_t c = 0; c < cols; ++c) {
          const double x = w[r * cols + c], e = x - stored[c];
          errors[r].error += e * e;
          errors[r].square += x * x;
        }
      }
    });
    WeightError sum;
    for (const WeightError& row : errors) {
      sum.error += row.error;
      sum.square += row.square;
    }
    add_error(matrix, sum);
  }

  void add_error(const Matrix& matrix, const WeightError& error) {
    matrix.result->weight_error += error.error;
    matrix.result->weight_square += error.square;
    if (!std::isfinite(matrix.result->weight_error)) {
      throw Error("{}: weights are too large for the scales of {}", printable(matrix.plan->name),
                  matrix.plan->format->name);
    }
  }

  Stream& stream_;
  Workspace& workspace_;
  ThreadPool& pool_;
  const WeightMap& weights_;
  const QuantizeOptions& options_;
  const LayerHessians* hessians_;
  PhaseTimes& times_;
  mutable std::map<const TensorPlan*, int64_t> gptq_matrices_;
};

}  // namespace

WorkFolder::Part quantize_part(Stream& stream, Workspace& workspace, const WeightMap& weights,
                               const QuantizeOptions& options, const LayerHessians* hessians,
                               PhaseTimes& times, const std::vector<const TensorPlan*>& plans) {
  return PartQuantizer(stream, workspace, weights, options, hessians, times).run(plans);
}

}  // namespace braid

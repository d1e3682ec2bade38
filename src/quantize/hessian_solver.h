#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "quant/weight.h"
#include "quantize/gptq.h"
#include "quantize/hessian.h"
#include "quantize/rounding.h"
#include "tensor/stream.h"
#include "tensor/workspace.h"

namespace braid {

// ‖W − Q‖² and ‖W‖².
struct WeightError {
  double error = 0, square = 0;
};
WeightError weight_error(ThreadPool& pool, const RoundingGrid& grid, std::span<const float> w,
                         const RoundedRows& rounded);

struct SolverOptions {
  // Products on a CUDA device by its ordinary units, in float32, rather than by the tensor cores as
  // three of bfloat16 each (which leave out less than 2^-15 of a product).
  bool exact = false;
};

// Rounds the matrices that share a Hessian one after the other, where the Hessian is. On the CPU
// with the functions of quantize/gptq.h. On a CUDA device by the same steps in the same order:
// scales of groups have the same bits where they are fitted to the same weights; sums of large
// products are in another order, so that codes differ where a weight could as well be rounded the
// other way, and what depends on them.
class HessianSolver {
 public:
  // Borrows all; `hessian` is finished. Takes memory from the workspace until it ends, on top of
  // what was there.
  static std::unique_ptr<HessianSolver> make(Stream& stream, Workspace& workspace,
                                             const Hessian& hessian, const SolverOptions& options);
  virtual ~HessianSolver() = default;

  // Factors the inverse, for round_gptq() of what is loaded next. As invert_hessian().
  struct Inverse {
    double damping = 0;
    int64_t num_dead_columns = 0;
  };
  virtual Inverse invert(double damping, ColumnOrder order, int64_t group) = 0;

  // Rows [first_row, first_row + rows) of a weight on the host. What follows is about these.
  virtual void load(const RoundingGrid& grid, const Weight& weight, int64_t first_row,
                    int64_t rows) = 0;
  virtual void round_to_nearest(bool search) = 0;
  // With the last inverse; and refine(), with its damping. Where the Hessian has the source's
  // inputs, what is rounded is aimed_weights(), and rounding_error() is about these.
  virtual void round_gptq(const GptqOptions& options) = 0;
  virtual RoundingError rounding_error() = 0;
  virtual WeightError weight_error() = 0;
  // On the host.
  virtual const RoundedRows& rounded() = 0;
};

}  // namespace braid

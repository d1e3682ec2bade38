#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "quantize/hessian.h"
#include "quantize/rounding.h"

namespace braid {

struct GptqOptions {
  double damping = 0.01;  // of the Hessian's mean diagonal
  ColumnOrder order = ColumnOrder::kBySize;
  bool search_scales = true;  // rather than those that let a group's range fit
  int refinements = 3;        // rounds of refine() after it
};

// What rounding does to a matrix's outputs on the inputs that its Hessian has seen.
struct RoundingError {
  double error = 0;   // ½ tr(E·H·Eᵀ) = mean ‖E·x‖², E = W − Q
  double output = 0;  // mean ‖W·x‖²
  // ‖E·X‖ / ‖W·X‖; 0 without outputs.
  double relative() const;
};

// Rounds w, [rows, cols], to the grid column by column, and spreads what each loses over the
// columns to come, so that the outputs change least (Frantar et al., "GPTQ", 2022). `inverse` comes
// of the matrix's Hessian, after finish(), with the options' order; columns that no input meets are
// rounded to nearest. Under kBySize scales are fitted to the weights as they were, otherwise to
// what they have become when their group begins. Each row has the same bits whatever the threads.
RoundedRows round_gptq(ThreadPool& pool, const RoundingGrid& grid, const float* w, int64_t rows,
                       const Hessian& hessian, const InverseFactor& inverse,
                       const GptqOptions& options);

// The weights whose outputs on the inputs come closest to those of w on the source's inputs:
// W + W·(C − H)·H'⁻¹, C = 2/n · Yᵀ·X, where the Hessian has them. w: [rows, cols].
std::vector<float> aimed_weights(ThreadPool& pool, const float* w, int64_t rows,
                                 const Hessian& hessian, const InverseFactor& inverse);

// Makes the error of outputs less, as the Hessian (with `damping` of its mean diagonal) tells it:
// in each round every group's scale becomes the best for its codes, then every code the best for
// all others, in turn. Each row has the same bits whatever the threads.
void refine(ThreadPool& pool, const RoundingGrid& grid, const float* w, const Hessian& hessian,
            double damping, int rounds, RoundedRows& rounded);

// To nearest; importance: null or one a column.
RoundedRows round_to_nearest(ThreadPool& pool, const RoundingGrid& grid, const float* w,
                             int64_t rows, int64_t cols, const float* importance, bool search);

RoundingError rounding_error(ThreadPool& pool, const RoundingGrid& grid, const float* w,
                             const RoundedRows& rounded, const Hessian& hessian);

}  // namespace braid

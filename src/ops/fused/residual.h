#pragma once

#include <array>
#include <span>

#include "ops/linear/linear.h"
#include "ops/moe/moe.h"

namespace braid {

// What a block adds to the residual stream. All float32.
struct ResidualBranch {
  TensorView y;        // [tokens, width]
  bool normed = true;  // rms_norm(y) is added, not y
  TensorView norm;     // [width], the norm's weight; or empty
  float epsilon = 1e-6f;
  float factor = 1;  // of the sum
};

// A norm whose result is the input of products.
struct InputNorm {
  TensorView weight;  // [width], or empty
  float epsilon = 1e-6f;
  InputRounding rounding;
  // Where one pass on a CUDA device leaves the input; empty: in the workspace. See stays_in_room().
  TensorView room = {};        // [tokens, width up to a multiple of 64] of bfloat16
  TensorView code_room = {};   // [tokens, width] of int8
  TensorView scale_room = {};  // [tokens] of float32
};

inline constexpr size_t kMaxInputNorms = 4;

// Whether an input of x of this rounding, with room for everything, is left there on this stream.
bool stays_in_room(Stream& stream, const TensorView& x, const InputRounding& rounding);

// x ← (x + rms_norm(y)) · factor, then inputs[i] = prepare_normed_input(x, norms[i]). The results
// are those of the single ops in turn, bit for bit; on a CUDA device it is one pass where all
// inputs are rounded, and sums over rows of up to 512 elements have another order. Equal norms
// share one input. x: [tokens, width].
void add_branch(Stream& stream, Workspace& workspace, const ResidualBranch& branch,
                const TensorView& x, std::span<const InputNorm> norms,
                std::span<LinearInput> inputs);

// dense ← rms_norm(dense) + rms_norm(combined experts, see combine_experts()): the two halves of a
// Gemma 4 feed-forward block with experts.  dense: [tokens, width], in place.
struct NormedBranches {
  TensorView dense_norm, experts_norm;  // [width]
  float epsilon = 1e-6f;
};
void combine_with_dense(Stream& stream, Workspace& workspace, const TensorView& expert_outputs,
                        const ExpertGroups& groups, const TensorView& experts,
                        const TensorView& weights, const NormedBranches& norms,
                        const TensorView& dense);

// What routed experts made of each token, before it is combined (see combine_experts()).
struct ExpertRows {
  TensorView rows;  // [tokens · k, width], sorted by expert
  const ExpertGroups& groups;
  TensorView experts, weights;  // [tokens, k]
};

// An expert that every token passes, weighted by a gate of its own.
struct SharedExpert {
  TensorView rows;                // [tokens, width]
  const Weight& gate;             // [1, cols]
  const LinearInput& gate_input;  // [tokens, cols]
};

// x ← x + combined experts + sigmoid(gate·gate_input) · shared rows, then inputs as in
// add_branch(). One pass on a CUDA device, for bfloat16 gates and rows of up to 4096 elements; the
// gate's sum then has another order. All but the rows of experts and the shared expert must have
// been made by ops in front of the last one that is queued (see GatedMlpCall::early).
void add_experts(Stream& stream, Workspace& workspace, const ExpertRows& experts,
                 const SharedExpert& shared, const TensorView& x, std::span<const InputNorm> norms,
                 std::span<LinearInput> inputs);

// combine_with_dense() of branch.y, which is overwritten or left as it is, then add_branch(). One
// pass on a CUDA device for rows of up to 4096 elements, with the same demands.
void add_dense_and_experts(Stream& stream, Workspace& workspace, const ExpertRows& experts,
                           const NormedBranches& halves, const ResidualBranch& branch,
                           const TensorView& x, std::span<const InputNorm> norms,
                           std::span<LinearInput> inputs);

// The input whose row i is row rows[i] of x.  rows: int32, on the stream's device.
LinearInput gather_input(Stream& stream, Workspace& workspace, const LinearInput& x,
                         const TensorView& rows);

}  // namespace braid

#pragma once

#include "ops/elementwise/elementwise.h"
#include "ops/linear/linear.h"

namespace braid {

// Inputs of matrix products that come straight out of another op. The results are those of the two
// ops in turn, bit for bit; on a CUDA device with rounded inputs they are one pass, sums over rows
// of up to 512 elements have another order, and the float32 values (LinearInput::x) are not
// written.

// prepare_linear_input(rms_norm(x)).  x: [tokens, width]; weight as rms_norm takes it.
LinearInput prepare_normed_input(Stream& stream, Workspace& workspace, const TensorView& x,
                                 const TensorView& weight, float epsilon,
                                 const InputRounding& rounding);

// prepare_linear_input(f(gate) ⊙ up).  gate, up: [tokens, width]; gate may be overwritten.
LinearInput prepare_gated_input(Stream& stream, Workspace& workspace, Activation activation,
                                const TensorView& gate, const TensorView& up,
                                const InputRounding& rounding);

// prepare_linear_input(sigmoid(gate) ⊙ x).  gate, x: [tokens, width]; x may be overwritten.
LinearInput prepare_sigmoid_gated_input(Stream& stream, Workspace& workspace,
                                        const TensorView& gate, const TensorView& x,
                                        const InputRounding& rounding);

// prepare_linear_input(gated_rms_norm(x)) of the heads of each token side by side.  x, gate:
// [tokens, heads, width]; x may be overwritten. One pass for int8 inputs of heads of 128.
LinearInput prepare_gated_norm_input(Stream& stream, Workspace& workspace, const TensorView& x,
                                     const TensorView& gate, const TensorView& weight,
                                     float epsilon, const InputRounding& rounding);

}  // namespace braid

#pragma once

#include "tensor/stream.h"
#include "tensor/tensor_view.h"

namespace braid {

// y = x · (mean(x²) + epsilon)^(−1/2) ⊙ weight, over the last dimension.
// x, y: [rows, width] or [tokens, heads, width] float32, may be the same; weight: [width] float32,
// or an empty view for none.
void rms_norm(Stream& stream, const TensorView& x, const TensorView& weight, float epsilon,
              const TensorView& y);

// residual += rms_norm(x): the post-norm of a block and its residual addition in one pass.
void add_rms_norm(Stream& stream, const TensorView& x, const TensorView& weight, float epsilon,
                  const TensorView& residual);

// y = rms_norm(x) ⊙ silu(gate): the output norm of Gated DeltaNet, statistics per head.
// x, gate, y: [tokens, heads, width] float32, y may be x; weight: [width], as it is multiplied.
void gated_rms_norm(Stream& stream, const TensorView& x, const TensorView& gate,
                    const TensorView& weight, float epsilon, const TensorView& y);

}  // namespace braid

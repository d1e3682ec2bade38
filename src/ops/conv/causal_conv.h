#pragma once

#include <span>

#include "ops/gated_delta/recurrent_store.h"
#include "tensor/stream.h"
#include "tensor/tensor_view.h"

namespace braid {

// Depthwise causal convolution over each sequence's rows, then SiLU:
//   y[t, c] = silu(Σ_j weight[c, j] · x[t − width + 1 + j, c]),
// rows before the sequence's start being zero, and those before the step's taken from its slot,
// which is updated. x, y: [tokens, channels] float32, rows may be strided, not the same memory;
// weight: [channels, width] float32, 1 <= width <= 8. A sequence's result does not
// depend on the others, nor on how its rows are split into steps. One without rows is left as it
// is.
void causal_conv_silu(Stream& stream, const TensorView& x, const TensorView& weight,
                      const RecurrentLayer& layer, std::span<const RecurrentRows> sequences,
                      const TensorView& y);

}  // namespace braid

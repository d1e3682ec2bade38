#pragma once

#include "ops/elementwise/elementwise.h"
#include "ops/linear/linear.h"

namespace braid::cuda {

// Inputs of int8 codes with one scale a token; with_packed: of bfloat16 as well. See
// takes_token_codes() in ops/cuda/cuda_ops.h.
LinearInput plain_token_codes(Stream& stream, Workspace& workspace, const TensorView& x,
                              bool with_packed);
// Of rms_norm(x).
LinearInput normed_token_codes(Stream& stream, Workspace& workspace, const TensorView& x,
                               const TensorView& weight, float epsilon, bool with_packed);
// Of activation(gate) ⊙ up.
LinearInput gated_token_codes(Stream& stream, Workspace& workspace, Activation activation,
                              const TensorView& gate, const TensorView& up, bool with_packed);
// Of sigmoid(gate) ⊙ x.
LinearInput sigmoid_gated_token_codes(Stream& stream, Workspace& workspace, const TensorView& gate,
                                      const TensorView& x, bool with_packed);
// Of gated_rms_norm(x): x, gate [tokens, heads, kGatedNormWidth].
inline constexpr int64_t kGatedNormWidth = 128;
LinearInput gated_norm_token_codes(Stream& stream, Workspace& workspace, const TensorView& x,
                                   const TensorView& gate, const TensorView& weight, float epsilon,
                                   bool with_packed);

}  // namespace braid::cuda

#pragma once

#include <cstdint>

#include "tensor/index_list.h"
#include "tensor/stream.h"
#include "tensor/tensor_view.h"

namespace braid {

// All views: [rows, width] float32, rows may be strided.

// The non-linearity of a gated MLP.
enum class Activation : uint8_t {
  kGeluTanh,  // Gemma
  kSilu,      // Qwen
};

// y = f(gate) ⊙ up, one of the two that follow.
void activate_and_multiply(Stream& stream, Activation activation, const TensorView& gate,
                           const TensorView& up, const TensorView& y);

// y = gelu(gate) ⊙ up, gelu(x) = ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))). y may be gate or up.
void gelu_tanh_mul(Stream& stream, const TensorView& gate, const TensorView& up,
                   const TensorView& y);

// y = silu(gate) ⊙ up, silu(x) = x·sigmoid(x). y may be gate or up.
void silu_mul(Stream& stream, const TensorView& gate, const TensorView& up, const TensorView& y);

// x *= sigmoid(gate)
void sigmoid_mul(Stream& stream, const TensorView& x, const TensorView& gate);

// x[t] += sigmoid(gate[t]) · y[t].  gate: [rows, 1].
void add_sigmoid_scaled(Stream& stream, const TensorView& x, const TensorView& y,
                        const TensorView& gate);

// x += y
void add(Stream& stream, const TensorView& x, const TensorView& y);

// x *= factor
void scale(Stream& stream, const TensorView& x, float factor);

// x = cap · tanh(x / cap)
void softcap(Stream& stream, const TensorView& x, float cap);

// y[i] = x[rows[i]]
void gather_rows(Stream& stream, const TensorView& x, const IndexList& rows, const TensorView& y);

}  // namespace braid

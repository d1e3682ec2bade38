#pragma once

#include <cstdint>

#include "tensor/stream.h"
#include "tensor/tensor_view.h"

namespace braid {

// The non-linearity of a gated MLP.
enum class Activation : uint8_t {
  kGeluTanh,  // Gemma
  kSilu,      // Qwen
};

// y = f(gate) ⊙ up.  All [rows, width]; y may be gate or up.
void activate_and_multiply(Stream& stream, Activation activation, const TensorView& gate,
                           const TensorView& up, const TensorView& y);

}  // namespace braid

#include "layers/activation.h"

#include "ops/elementwise/elementwise.h"

namespace braid {

void activate_and_multiply(Stream& stream, Activation activation, const TensorView& gate,
                           const TensorView& up, const TensorView& y) {
  switch (activation) {
    case Activation::kGeluTanh:
      return gelu_tanh_mul(stream, gate, up, y);
    case Activation::kSilu:
      return silu_mul(stream, gate, up, y);
  }
}

}  // namespace braid

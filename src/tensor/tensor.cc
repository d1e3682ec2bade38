#include "tensor/tensor.h"

namespace braid {

Tensor::Tensor(DType dtype, const Shape& shape, Device device)
    : buffer_(static_cast<size_t>(shape.num_elements()) * dtype_bytes(dtype), device),
      view_(buffer_.data(), dtype, shape, device) {}

}  // namespace braid

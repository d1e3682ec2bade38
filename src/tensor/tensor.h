#pragma once

#include "tensor/buffer.h"
#include "tensor/tensor_view.h"

namespace braid {

// Owns its elements; move-only; zero-filled on creation. Converts to a view.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, const Shape& shape, Device device = {});

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT: implicit by design
  const Shape& shape() const { return view_.shape(); }
  DType dtype() const { return view_.dtype(); }
  template <typename T>
  T* data() const {
    return view_.data<T>();
  }

 private:
  Buffer buffer_;
  TensorView view_;
};

}  // namespace braid

#pragma once

#include <cstddef>
#include <span>

#include "base/check.h"
#include "tensor/device.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace braid {

// A copyable reference to elements owned elsewhere. The innermost dimension is contiguous; the row
// stride (elements between neighbours along the first dimension) may exceed the size of a row; all
// dimensions below the first are dense.
class TensorView {
 public:
  TensorView() = default;
  TensorView(void* data, DType dtype, Shape shape, Device device = {})
      : data_(static_cast<std::byte*>(data)),
        shape_(shape),
        row_stride_(row_elements(shape)),
        dtype_(dtype),
        device_(device) {}

  bool empty() const { return shape_.rank() == 0 || shape_.num_elements() == 0; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t dim(int i) const { return shape_.dim(i); }
  int rank() const { return shape_.rank(); }
  int64_t num_elements() const { return shape_.num_elements(); }
  Device device() const { return device_; }
  int64_t row_stride() const { return row_stride_; }
  bool contiguous() const {
    return shape_.rank() == 0 || row_stride_ == row_elements(shape_) || shape_.dim(0) <= 1;
  }

  void* raw() const { return data_; }
  // Typed pointer to the first element; T must match dtype().
  template <typename T>
  T* data() const {
    BRAID_CHECK(DTypeOf<T>::value == dtype_, "element type is {}", dtype_name(dtype_));
    return reinterpret_cast<T*>(data_);
  }
  // Row `i` of the first dimension.
  template <typename T>
  T* row(int64_t i) const {
    return data<T>() + i * row_stride_;
  }
  // The elements of a contiguous view.
  template <typename T>
  std::span<T> span() const {
    BRAID_CHECK(contiguous(), "view with row stride {}", row_stride_);
    return {data<T>(), static_cast<size_t>(num_elements())};
  }

  // Rows [begin, begin + count) of the first dimension.
  TensorView rows(int64_t begin, int64_t count) const;
  // Columns [begin, begin + count) of a matrix.
  TensorView columns(int64_t begin, int64_t count) const;
  // The same elements under another shape; a view whose rows are apart keeps its first dimension.
  TensorView reshape(const Shape& shape) const;

 private:
  static int64_t row_elements(const Shape& shape) {
    int64_t n = 1;
    for (int i = 1; i < shape.rank(); ++i) n *= shape.dim(i);
    return n;
  }

  std::byte* data_ = nullptr;
  Shape shape_;
  int64_t row_stride_ = 0;
  DType dtype_ = DType::kF32;
  Device device_;
};

}  // namespace braid

#include "tensor/tensor_view.h"

#include <fmt/format.h>

namespace braid {

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape.sizes(), ", "));
}

TensorView TensorView::rows(int64_t begin, int64_t count) const {
  BRAID_CHECK(begin >= 0 && count >= 0 && begin + count <= dim(0), "rows [{}, {}) of {}", begin,
              begin + count, dim(0));
  std::array<int64_t, Shape::kMaxRank> sizes{};
  for (int i = 0; i < rank(); ++i) sizes[i] = dim(i);
  sizes[0] = count;
  TensorView view = *this;
  view.shape_ = Shape(std::span<const int64_t>(sizes.data(), rank()));
  view.data_ = data_ + begin * row_stride_ * dtype_bytes(dtype_);
  return view;
}

TensorView TensorView::columns(int64_t begin, int64_t count) const {
  BRAID_CHECK(rank() == 2 && begin >= 0 && count >= 0 && begin + count <= dim(1),
              "columns [{}, {}) of {}", begin, begin + count, to_string(shape_));
  TensorView view = *this;
  view.shape_ = Shape{dim(0), count};
  view.data_ = data_ + begin * dtype_bytes(dtype_);
  return view;
}

TensorView TensorView::reshape(const Shape& shape) const {
  BRAID_CHECK(shape.num_elements() == num_elements(), "{} as {}", to_string(shape_),
              to_string(shape));
  TensorView view = *this;
  view.shape_ = shape;
  if (contiguous()) {
    view.row_stride_ = row_elements(shape);
  } else {
    BRAID_CHECK(shape.dim(0) == dim(0), "{} with row stride {} as {}", to_string(shape_),
                row_stride_, to_string(shape));
  }
  return view;
}

}  // namespace braid

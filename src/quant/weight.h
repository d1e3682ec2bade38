#pragma once

#include <cstddef>
#include <memory>

#include "base/check.h"
#include "quant/quant_format.h"
#include "tensor/shape.h"

namespace braid {

// A read-only parameter as stored: format, logical shape ([n], [rows, cols] or [experts, rows,
// cols], the last dimension contiguous) and payload. Copies share the payload, which lives as long
// as any copy.
struct Weight {
  const QuantFormat* format = nullptr;
  Shape shape;
  const std::byte* data = nullptr;
  std::shared_ptr<const void> owner;

  bool empty() const { return format == nullptr; }
  int64_t rows() const { return shape.dim(-2); }
  int64_t cols() const { return shape.dim(-1); }
  int64_t row_bytes() const { return format->row_bytes(cols()); }
  int64_t size_bytes() const { return shape.num_elements() / cols() * row_bytes(); }
  const std::byte* row(int64_t i) const { return data + i * row_bytes(); }

  // Rows [begin, begin + count) of a matrix.
  Weight slice_rows(int64_t begin, int64_t count) const {
    BRAID_CHECK(shape.rank() == 2 && begin >= 0 && begin + count <= rows());
    Weight slice = *this;
    slice.shape = Shape{count, cols()};
    slice.data = row(begin);
    return slice;
  }
};

}  // namespace braid

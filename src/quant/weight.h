#pragma once

#include <cstddef>
#include <memory>

#include "base/check.h"
#include "quant/quant_format.h"
#include "tensor/device.h"
#include "tensor/shape.h"

namespace braid {

// A read-only parameter as stored: format, logical shape ([n], [rows, cols] or [experts, rows,
// cols], the last dimension contiguous) and payload. In panels each matrix has its rows filled up
// to a whole number of panels. Copies share the payload, which lives as long as any copy.
struct Weight {
  const QuantFormat* format = nullptr;
  Shape shape;
  const std::byte* data = nullptr;
  std::shared_ptr<const void> owner;
  Device device = {};

  bool empty() const { return format == nullptr; }
  int64_t rows() const { return shape.dim(-2); }
  int64_t cols() const { return shape.dim(-1); }
  int64_t row_bytes() const { return format->row_bytes(cols()); }
  // Of one matrix, with its filling.
  int64_t matrix_bytes() const {
    const int64_t panel_rows = format->panel_rows;
    return (rows() + panel_rows - 1) / panel_rows * panel_rows * row_bytes();
  }
  int64_t size_bytes() const {
    if (!format->panels()) return shape.num_elements() / cols() * row_bytes();
    return shape.num_elements() / (rows() * cols()) * matrix_bytes();
  }
  // In panels: `i` must be the first row of one. Any row, expanded: expand_row() in quant/panels.h.
  const std::byte* row(int64_t i) const {
    BRAID_CHECK(i % format->panel_rows == 0, "row {} of {}", i, format->name);
    return data + i * row_bytes();
  }

  // Rows [begin, begin + count) of a matrix; in panels, from the first row of one.
  Weight slice_rows(int64_t begin, int64_t count) const {
    BRAID_CHECK(shape.rank() == 2 && begin >= 0 && begin + count <= rows());
    Weight slice = *this;
    slice.shape = Shape{count, cols()};
    slice.data = row(begin);
    return slice;
  }
};

}  // namespace braid

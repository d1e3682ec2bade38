#include "models/weight_rows.h"

#include <algorithm>
#include <cstring>

#include "quant/panels.h"
#include "tensor/buffer.h"

namespace braid {
namespace {

Weight allocate(const QuantFormat& format, const Shape& shape, std::byte*& payload) {
  Weight weight{.format = &format, .shape = shape};
  const auto buffer = std::make_shared<Buffer>(static_cast<size_t>(weight.size_bytes()), Device{});
  payload = buffer->data();
  weight.data = payload;
  weight.owner = buffer;
  return weight;
}

}  // namespace

Weight select_rows(const Weight& matrix, std::span<const RowRange> ranges) {
  BRAID_CHECK(matrix.shape.rank() == 2, "shape {}", to_string(matrix.shape));
  int64_t rows = 0;
  for (const RowRange& range : ranges) {
    BRAID_CHECK(range.begin >= 0 && range.begin + range.count <= matrix.rows(),
                "rows [{}, {}) of {}", range.begin, range.begin + range.count, matrix.rows());
    rows += range.count;
  }
  const bool whole_panels = std::all_of(ranges.begin(), ranges.end(), [&](const RowRange& range) {
    return range.begin % matrix.format->panel_rows == 0 &&
           range.count % matrix.format->panel_rows == 0;
  });
  const QuantFormat& format = whole_panels ? *matrix.format : quant_format(matrix.format->id);
  std::byte* to = nullptr;
  const Weight result = allocate(format, {rows, matrix.cols()}, to);
  for (const RowRange& range : ranges) {
    const auto bytes = static_cast<size_t>(range.count * matrix.row_bytes());
    if (whole_panels) {
      std::memcpy(to, matrix.row(range.begin), bytes);
    } else {
      for (int64_t i = 0; i < range.count; ++i) {
        copy_row(matrix, range.begin + i, to + i * matrix.row_bytes());
      }
    }
    to += bytes;
  }
  return result;
}

Weight stack_matrices(std::span<const Weight> matrices) {
  BRAID_CHECK(!matrices.empty(), "nothing to stack");
  const Weight& first = matrices.front();
  std::byte* to = nullptr;
  const Weight result = allocate(
      *first.format, {static_cast<int64_t>(matrices.size()), first.rows(), first.cols()}, to);
  for (const Weight& matrix : matrices) {
    BRAID_CHECK(matrix.format == first.format && matrix.shape == first.shape, "{} {} beside {} {}",
                matrix.format->name, to_string(matrix.shape), first.format->name,
                to_string(first.shape));
    const auto bytes = static_cast<size_t>(matrix.size_bytes());
    std::memcpy(to, matrix.data, bytes);
    to += bytes;
  }
  return result;
}

}  // namespace braid

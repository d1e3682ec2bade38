#pragma once

#include <algorithm>
#include <cstdint>

#include "tensor/stream.h"

namespace braid {

// Elements below which waking another thread costs more than it saves.
inline constexpr int64_t kSplitElements = 16384;

// Calls body(begin, end) for ranges of rows of `width` elements, on as many threads as the work is
// worth.
template <typename Body>
void split_rows(Stream& stream, int64_t rows, int64_t width, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, kSplitElements / std::max<int64_t>(1, width));
  stream.pool().parallel_for(rows, grain,
                             [&](int64_t begin, int64_t end, int) { body(begin, end); });
}

// Calls body(row, begin, end) for ranges of columns that cover every row. For ops whose elements
// are independent.
template <typename Body>
void split_elements(Stream& stream, int64_t rows, int64_t width, const Body& body) {
  if (width <= 2 * kSplitElements) {
    split_rows(stream, rows, width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) body(row, int64_t{0}, width);
    });
    return;
  }
  const int64_t blocks = (width + kSplitElements - 1) / kSplitElements;
  stream.pool().parallel_for(rows * blocks, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t column = item % blocks * kSplitElements;
      body(item / blocks, column, std::min(width, column + kSplitElements));
    }
  });
}

}  // namespace braid

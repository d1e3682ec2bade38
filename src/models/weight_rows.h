#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quant/weight.h"

namespace braid {

// Rearranging stored matrices. Blocks run along rows, so whole rows move in any format. Results own
// their memory.

struct RowRange {
  int64_t begin = 0;
  int64_t count = 0;
};

// The ranges' rows of a matrix, one range after the other. Of a matrix in panels: in panels if all
// ranges are whole panels, otherwise row after row.
Weight select_rows(const Weight& matrix, std::span<const RowRange> ranges);

// [count, rows, cols] of equal matrices [rows, cols] in one format.
Weight stack_matrices(std::span<const Weight> matrices);

}  // namespace braid

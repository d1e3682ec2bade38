#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/weight.h"

namespace braid {

// A layout of matrices in block formats for kernels that work on neighbouring rows: kPanelRows rows
// lie interleaved, so that one load takes the same four bytes of all of them. A panel begins with
// the headers of its rows, if the format has any: [words][kPanelRows] × 4 bytes. Of each column of
// blocks it holds
//
//   the blocks' odd float16, if block_bytes is no multiple of 4:   [kPanelRows] × 2 bytes
//   the remaining 32-bit words of the blocks, in order:    [words][kPanelRows] × 4 bytes
//
// which are the bytes of the file's blocks in another order: same size, same values. The rows of a
// matrix are filled up with zeros to a whole number of panels.
inline constexpr int kPanelRows = 16;

// The number of this layout; files that hold panels name it.
inline constexpr int kPanelLayoutVersion = 1;

// The format of panels of a block format, named like "q4_0x16"; nullptr for plain formats. Both
// have the same id.
const QuantFormat* panel_format(const QuantFormat& format);
// By its name; nullptr if there is none.
const QuantFormat* find_panel_format(std::string_view name);

// Lays [rows, cols] of a block format out as panels. `panels` has room for the rows filled up.
void pack_panels(const QuantFormat& format, const std::byte* rows, int64_t num_rows, int64_t cols,
                 std::byte* panels);

// Row `row` of a matrix, or of the matrices of a stack one after the other, as blocks of the format
// that is not in panels: row_bytes() bytes.
void copy_row(const Weight& weight, int64_t row, std::byte* blocks);
// The same, expanded to cols() numbers.
void expand_row(const Weight& weight, int64_t row, float* out);

}  // namespace braid

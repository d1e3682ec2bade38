#pragma once

#include <cstdint>

#include "quant/weight.h"

namespace braid {

// A layout of matrices in some block formats for CUDA devices: what a warp multiplies lies together
// and comes with few, long copies. kTileRows neighbouring rows form a panel, of as many bytes as
// they have in the file; the rows of a matrix are filled up to whole panels. A panel is a sequence
// of units of so many columns (TileLayout in quant/tile_layout.h). A unit has
//
//   its codes, 16 bytes for each lane l = 0 … 31 of a warp and each 16 rows and 64 columns (4-bit
//   codes) or 32 columns (8-bit codes): [column runs][2 runs of rows][lanes][16 bytes];
//   for each of its groups of columns the scales, [8][4] for rows i, i + 8, i + 16 and i + 24, and
//   in asymmetric formats as many bfloat16 numbers −zero / 64.
//
// Sixteen bytes of codes belong to row l / 4 of their run and the row 8 further on, and, in each 32
// columns, to the eight from l % 4 · 8 on. 4-bit codes: words for the two rows in the first 32
// columns, then in the second; bits 4 i and 16 + 4 i hold columns 2 i and 2 i + 1. 8-bit codes: two
// words for either row, each byte a code plus 128. Rows of w8c have their scales, then the sums of
// their codes, behind the last unit of a panel: [8][4] words each.
inline constexpr int kTileRows = 32;

// The format of such tiles; nullptr if the format, or a matrix of that width, has none.
const QuantFormat* tile_format(const QuantFormat& format, int64_t cols);

// Whether a weight's format is one of those.
bool in_tiles(const QuantFormat& format);

}  // namespace braid

#pragma once

#include <cstdint>

#include "quant/weight.h"

namespace braid {

// A layout of matrices in some block formats for CUDA devices: what a thread of the tensor cores
// multiplies lies together. kTileRows neighbouring rows form a panel, of as many bytes as they have
// in the file; the rows of a matrix are filled up to whole panels. A panel holds
//
//   its tiles, of 64 columns (4-bit codes) or 32 (8-bit codes), in order, 512 bytes each;
//   the scales of its groups, 2 bytes each: [groups][8][2], for rows i and i + 8 of the panel;
//   where a tile has two groups: [tiles][8][2 groups][2].
//
// Sixteen bytes of a tile belong to row l / 4 and the row 8 further on, and, in each 32 columns, to
// the eight from l % 4 · 8 on, for l = 0 … 31. 4-bit codes: words for the two rows in the first 32
// columns, then in the second; bits 4 i and 16 + 4 i hold columns 2 i and 2 i + 1. 8-bit codes: two
// words for either row.
inline constexpr int kTileRows = 16;

// The format of such tiles; nullptr if the format, or a matrix of that width, has none.
const QuantFormat* tile_format(const QuantFormat& format, int64_t cols);

// Whether a weight's format is one of those.
bool in_tiles(const QuantFormat& format);

}  // namespace braid

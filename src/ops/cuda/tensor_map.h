#pragma once

#include <cuda.h>

#include <cstdint>

namespace braid::cuda {

// How the copy engine of Hopper finds boxes of `box_rows` (up to 256) rows × 64 columns of a
// bfloat16 matrix [rows, cols] whose rows are `stride` elements apart; what lies outside of it is
// zeros. In shared memory a box
// is its rows of 128 bytes one after another, their 16-byte chunks permuted: chunk c of row r is at
// c ^ (r % 8). The matrix must lie at a multiple of 16 bytes, the stride must be a multiple of 8.
CUtensorMap make_tensor_map(const void* matrix, int64_t rows, int64_t cols, int64_t stride,
                            int box_rows);

// The same for boxes of `box_chunks` times kChunkColumns columns: in shared memory a box is
// [box_chunks][box_rows][128 bytes], permuted by these box_chunks · box_rows rows. Both parts of a
// box have up to 256. cols must be a multiple of kChunkColumns.
inline constexpr int kChunkColumns = 64;
CUtensorMap make_chunk_map(const void* matrix, int64_t rows, int64_t cols, int64_t stride,
                           int box_rows, int box_chunks);

}  // namespace braid::cuda

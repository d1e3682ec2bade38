#pragma once

#include <cstdint>

#include "ops/linear/linear.h"

namespace braid::cuda {

// One matrix, or a stack of them with the rows of x that meet each, as the kernels see them.
// Strides count elements. All memory is the device's.
struct Products {
  FormatId format;
  bool tiles;  // quant/device_tiles.h; otherwise rows as in files
  const uint8_t* weights;
  int64_t row_bytes;
  int64_t matrix_bytes;
  int rows, cols;
  const float* x;  // [tokens, cols]; null if `packed` is there
  int64_t x_stride;
  const uint16_t* packed;  // bfloat16, with zeros up to a multiple of kPackedColumns
  int64_t packed_stride;
  float* y;  // [tokens, rows]
  int64_t y_stride;
  int tokens;
  int experts;             // 0: one matrix for all tokens
  const int32_t* offsets;  // [experts + 1]
};

inline constexpr int kPackedColumns = 64;
// Tokens per expert, on average, up to which weights are streamed past them.
inline constexpr int kFewTokensPerExpert = 8;

// Without outputs; tokens are those of x.
Products products_of(const Weight& w, const LinearInput& x);

// Float32 sums of products by the ordinary units, of inputs in either form; any size and alignment
// of rows that a Weight can have.
void exact_products(Stream& stream, const Products& products);

// For up to most_few_tokens() tokens, or as many for an expert if it is to be fast: weights are
// streamed through registers into the tensor cores. Needs `packed`.
bool few_tokens_can(const Products& products);
int most_few_tokens(const Products& products);
void few_tokens_products(Stream& stream, const Products& products);

// For many tokens. Grouped: by tensor cores, tile by tile. Otherwise by the matrix library, on
// weights expanded piece by piece where they are not in the library's format; false if the library
// cannot.
void grouped_tiles_products(Stream& stream, const Products& products);
bool library_products(Stream& stream, const Products& products);

// Rows [first, first + count) of one matrix, expanded to dense rows of bfloat16 or float32.
void expand_rows(Stream& stream, const Products& products, int first, int count, uint16_t* out);
void expand_rows(Stream& stream, const Products& products, int first, int count, float* out);

}  // namespace braid::cuda

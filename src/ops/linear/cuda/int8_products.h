#pragma once

#include <cstdint>

#include "ops/elementwise/elementwise.h"
#include "ops/linear/linear.h"

namespace braid::cuda {

// Products of w8c weights in the layout of quant/device_tiles.h with inputs of int8 codes that have
// one scale a token, on the tensor cores of Hopper: exact sums of integers, scaled once, so that
// results are the bits of the CPU's.

// Codes of inputs lie in the order in which the tensor cores meet the weights: of each 32 columns,
// column 8 q + 4 h + i is at place 16 h + 4 q + i.
struct Int8Products {
  const uint8_t* weights;  // the first panel of the first matrix
  int64_t panel_bytes;
  int64_t matrix_bytes;
  int rows, cols;
  const uint8_t* up;  // gated: the first panel with up rows, of the first matrix; or null
  Activation activation;

  const int8_t* codes;  // [tokens, cols]
  int64_t codes_stride;
  const float* scales;    // [tokens]
  const int32_t* x_rows;  // the inputs' rows, of each token or pair; null: its own
  float* y;               // [tokens or pairs, rows]
  uint16_t* rounded;      // not gated: bfloat16 in place of y; or null. Rows: a multiple of 16.
  int64_t y_stride;
  int tokens;
  int experts;             // 0: one matrix for all tokens
  const int32_t* offsets;  // [experts + 1]
};

// Inputs wider than this are not given codes.
inline constexpr int64_t kMostTokenCodes = 16384;

// Whether this program has the kernels for the stream's device.
bool has_int8_products(Stream& stream);
// Whether a product with this input is one of codes.
bool reads_token_codes(const Weight& w, const LinearInput& x);

// Without outputs; tokens are those of x.
Int8Products int8_products_of(const Weight& w, const LinearInput& x);
// y, or activation(gate) ⊙ up.
void int8_products(Stream& stream, const Int8Products& products);

}  // namespace braid::cuda

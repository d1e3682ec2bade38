#pragma once

#include <cuda.h>

#include <cstdint>

#include "ops/cuda/launch.cuh"
#include "ops/elementwise/elementwise.h"
#include "ops/linear/cuda/products.h"

namespace braid::cuda {

// Products of bfloat16 weights of experts with many tokens, by blocks that stay: one group of warps
// copies weights and inputs, the others multiply and store. Results are rounded to bfloat16. For
// Hopper.
struct WideProducts {
  CUtensorMap weights, up;  // boxes of 64 rows; `up` if gated
  int up_row;               // of the first row of `up` in its map; of expert 0
  int expert_rows;          // from an expert's first row to the next one's
  int rows;                 // outputs a token
  int steps;                // of 64 columns
  bool gated;               // outputs are activation(gate) ⊙ up
  Activation activation;
  const uint16_t* x;  // bfloat16, with zeros up to a multiple of 64 columns
  int64_t x_stride;
  const int32_t* x_rows;  // the row of x that a pair meets; null: its own
  uint16_t* out;
  int64_t out_stride;
  int tokens, experts;
  const int32_t* offsets;  // [experts + 1]
};

// Whether products of these weights and inputs can be computed here: a multiple of 64 rows, among
// others. Rows of `out` lie at multiples of 8 bytes.
bool wide_products_can(Stream& stream, const Products& products);
// out = w · x.
void wide_products(Stream& stream, const Products& products, Rows<uint16_t> out);
// out = activation(gate · x) ⊙ (up · x): `products` are those of the gate with its rows alone;
// where up is null its rows follow those of the gate in each matrix. x_rows as above, or null.
void wide_gated_products(Stream& stream, const Products& products, const void* up,
                         Activation activation, const int32_t* x_rows, Rows<uint16_t> out);

}  // namespace braid::cuda

#pragma once

#include "ops/linear/cuda/int8_products.h"

namespace braid::cuda {

// The products of int8_products.h by tiles of 64, 128 or, of one matrix, 256 tokens; 0: by how many
// tokens there are.
void int8_tiles_products(Stream& stream, const Int8Products& products, int tile_tokens);

}  // namespace braid::cuda

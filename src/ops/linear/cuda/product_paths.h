#pragma once

#include "ops/fused/gated_mlps.h"
#include "ops/linear/cuda/int8_products.h"
#include "ops/linear/cuda/product_choice.h"
#include "ops/linear/cuda/products.h"

namespace braid::cuda {

// The product table of the stream's device: that of a ProductTableScope, of BRAID_PRODUCT_TABLE, or
// of those of this program; null if there is none. Looked up once a process; throws Error for a bad
// file.
const ProductTable* product_table(Stream& stream);

ProductSize size_of(const Products& products);
ProductSize size_of(const Int8Products& products);

// The paths that can compute these.
PathSet possible_paths(Stream& stream, const Products& products);
PathSet possible_paths(const Int8Products& products);

// By the stream's table and the constants, or, if it is deterministic, the fixed one.
ProductChoice choose(Stream& stream, const Products& products);
ProductChoice choose(Stream& stream, const Int8Products& products);

// The path must be possible.
void run_path(Stream& stream, const Products& products, ProductChoice choice);
void run_path(Stream& stream, const Int8Products& products, ProductChoice choice);

// Of inputs of bfloat16: kStream, in one pass over the weights; kWide, with rounded results (of
// experts); kParts. Of codes: kTiles, gate, up and activation as one; kParts. `beside`: the call is
// part of a pass over experts, too, where constants decide alone. Not on a deterministic stream,
// unless of codes.
ProductPath gated_path(Stream& stream, const GatedMlpCall& call, bool beside);

}  // namespace braid::cuda

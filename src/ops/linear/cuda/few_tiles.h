#pragma once

#include "ops/linear/cuda/products.h"

namespace braid::cuda {

// few_tokens_products() for weights in tiles of one format; `tokens` that meet a matrix at once.
template <FormatId kFormat>
void few_tiles_of(Stream& stream, const Products& products, int tokens);
// Blocks that run at once, one on a multiprocessor, in clusters of `splits` (1 to 8).
int blocks_in_clusters(Stream& stream, int splits);

}  // namespace braid::cuda

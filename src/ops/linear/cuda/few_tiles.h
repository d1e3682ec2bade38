#pragma once

#include "ops/linear/cuda/products.h"

namespace braid::cuda {

// few_tokens_products() for weights in tiles of one format; `tokens` that meet a matrix at once.
template <FormatId kFormat>
void few_tiles_of(Stream& stream, const Products& products, int tokens);

}  // namespace braid::cuda

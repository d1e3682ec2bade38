#pragma once

#include "ops/linear/cuda/products.h"

namespace braid::cuda {

// Products of a small matrix of bfloat16 (a router, the gates of heads), kMostFewRowsTokens tokens
// at a time; more are not worth it. Blocks wait for nothing but their inputs, with their weights in
// registers before. The order of a token's sums does not depend on the others.
inline constexpr int kMostFewRowsTokens = 64;
bool few_rows_can(const Products& products);
// ahead: the next kernel may begin before x is there (let_next_begin()).
void few_rows_products(Stream& stream, const Products& products, bool ahead = false);

}  // namespace braid::cuda

#pragma once

#include "ops/linear/cuda/int8_products.h"

namespace braid::cuda {

// Int8 products of experts that have up to about 64 tokens each, by blocks that stay and have warps
// of their own for copying. Whether there are enough of them, with rows that fill its items:
bool int8_experts_can(Stream& stream, const Int8Products& products);
void int8_experts_products(Stream& stream, const Int8Products& products);

}  // namespace braid::cuda

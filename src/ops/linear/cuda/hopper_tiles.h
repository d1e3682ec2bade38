#pragma once

#include "ops/linear/cuda/products.h"

namespace braid::cuda {

// As grouped_tiles_products(), with the tensor cores of Hopper, which take their operands from
// shared memory; false on other devices, and for formats that it does not have.
bool hopper_tiles_products(Stream& stream, const Products& products);

}  // namespace braid::cuda

#pragma once

#include "ops/linear/cuda/products.h"

namespace braid::cuda {

// stream_products() (weight_stream.h) of one matrix by so many row warps; it itself takes
// stream_row_warps().
void stream_products_by(Stream& stream, const Products& products, int row_warps);
bool row_warps_can(const Products& products, int row_warps);

}  // namespace braid::cuda

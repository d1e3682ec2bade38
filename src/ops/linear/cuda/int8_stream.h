#pragma once

#include "ops/linear/cuda/int8_products.h"

namespace braid::cuda {

// The products of int8_products.h of one matrix with few tokens, by the kernel of weight_stream.h;
// the same bits.
bool streams_codes(const Int8Products& products);
void stream_code_products(Stream& stream, const Int8Products& products);

}  // namespace braid::cuda

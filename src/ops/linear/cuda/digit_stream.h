#pragma once

#include "ops/linear/cuda/weight_stream.h"

namespace braid::cuda {

// Products of symmetric 4-bit tiles in groups of 128 columns as phases of weight_stream.h, with
// inputs of digits (digits.cuh), which are made from their bfloat16 rows. Exact but for float32
// sums over the groups and an input's 1 / 65024 of the largest of its group.
bool streams_digits(Stream& stream, const Products& products);

// Of up to 16 tokens.
StreamPlan digit_plan(const Products& products);
// Without outputs; digits: room for, or what make_digits() left of, the inputs.
StreamPhase digit_phase(Stream& stream, const StreamPlan& plan, const Products& products,
                        const int8_t* digits, bool gated);
int64_t digit_bytes(int tokens, int cols);
// Of products.packed; rows of `cols` bytes.
void make_digits(Stream& stream, const Products& products, int8_t* digits);

void stream_digits(Stream& stream, StreamPlan& plan);
// Any number of tokens.
void stream_digit_products(Stream& stream, const Products& products);

}  // namespace braid::cuda

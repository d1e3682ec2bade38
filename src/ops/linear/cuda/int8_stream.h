#pragma once

#include "ops/linear/cuda/int8_products.h"
#include "ops/linear/cuda/weight_stream.h"

namespace braid::cuda {

// The products of int8_products.h with few tokens, as phases of weight_stream.h; the same bits.
inline constexpr int kMostCodeTokens = 64;     // of one matrix that are worth it
inline constexpr int kMostCodesPerExpert = 2;  // on average

// Whether they are few enough, and the weights lie so that they can be streamed.
bool streams_codes(const Int8Products& products);

// A plan without phases; pairs, experts and offsets are the caller's to set.
StreamPlan code_plan(int tokens);
// Of one matrix or of experts, with outputs.
StreamPhase code_phase(const StreamPlan& plan, const Int8Products& products, int row_warps);
// The inputs of a phase whose products.codes are yet to come: made from `activated`, [tokens, cols]
// float32, which `from` computes. Columns of a step that are codes, for so many row warps, may be
// kMostMadeSteps times in a row.
void make_inputs_of(StreamPhase& phase, const StreamPhase& from, float* scales);
inline constexpr int kMostMadeSteps = 4;
int code_row_warps(int cols);  // the most that a row of made inputs allows

void stream_codes(Stream& stream, StreamPlan& plan);
void stream_code_products(Stream& stream, const Int8Products& products);

}  // namespace braid::cuda

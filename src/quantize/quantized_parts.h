#pragma once

#include <vector>

#include "base/thread_pool.h"
#include "quant/weight.h"
#include "quantize/plan.h"
#include "quantize/sharded_writer.h"

namespace braid {

// How a quantised matrix is stored by compressed-tensors: 4 bits as `pack-quantized` (int32 words
// of eight codes, bfloat16 scales, zeros packed along rows), int8 as `int-quantized`. Stacks keep
// their third dimension, or are split into experts one by one. The bytes are made by all threads of
// `pool`, which is borrowed, as the plan is.
std::vector<OutputTensors> compressed_tensors_parts(const TensorPlan& plan, const Weight& weight,
                                                    bool split_experts, ThreadPool& pool);

// By AutoGPTQ, version 1 (zeros less one): qweight [in / 8, out], qzeros [groups, out / 8], scales
// [groups, out] in float16, g_idx. Stacks are split. Throws Error for rows that are no multiple of
// 8, or formats of other than 4 bits.
std::vector<OutputTensors> gptq_parts(const TensorPlan& plan, const Weight& weight,
                                      ThreadPool& pool);

// A matrix of a stack, or the matrix itself: its name in a file that holds them singly
// ("….experts.3.gate_proj.weight"), and its rows.
struct SingleMatrix {
  std::string name;
  int64_t first_row = 0;  // of all rows of the stack
  int64_t rows = 0;
};
std::vector<SingleMatrix> single_matrices(const TensorPlan& plan);

}  // namespace braid

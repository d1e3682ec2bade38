#pragma once

#include <span>

#include "ops/attention/attention.h"
#include "ops/conv/causal_conv.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"
#include "ops/fused/attend_heads.h"
#include "ops/fused/attention_heads.h"
#include "ops/fused/delta_step.h"
#include "ops/fused/gated_mlps.h"
#include "ops/fused/prepared_input.h"
#include "ops/fused/residual.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/linear/linear.h"
#include "ops/logits/scan_logits.h"
#include "ops/moe/moe.h"
#include "ops/norm/rms_norm.h"
#include "ops/rope/rope.h"

// The CUDA side of every op, under the contract of the op of that name, which has checked its
// arguments and found that there is something to do. All views are in the stream's device memory;
// lists of rows may be on the host. In a build without CUDA all of these throw Error.
namespace braid::cuda {

// Puts on the device what the ops of a step read of its sequences, so that they find it there. Ops
// choose what they launch by the result of the first, the pages that a sequence has room for.
int upload_sequences(Stream& stream, std::span<const SequenceRows> sequences);
void upload_sequences(Stream& stream, std::span<const RecurrentRows> sequences);

// rms_norm, add_rms_norm (y: the residual) and gated_rms_norm. x: rank 2 or 3.
void rms_norm(Stream& stream, const TensorView& x, const TensorView& weight, float epsilon,
              const TensorView& y);
void add_rms_norm(Stream& stream, const TensorView& x, const TensorView& weight, float epsilon,
                  const TensorView& residual);
void gated_rms_norm(Stream& stream, const TensorView& x, const TensorView& gate,
                    const TensorView& weight, float epsilon, const TensorView& y);

void gelu_tanh_mul(Stream& stream, const TensorView& gate, const TensorView& up,
                   const TensorView& y);
void silu_mul(Stream& stream, const TensorView& gate, const TensorView& up, const TensorView& y);
void sigmoid_mul(Stream& stream, const TensorView& x, const TensorView& gate);
void add_sigmoid_scaled(Stream& stream, const TensorView& x, const TensorView& y,
                        const TensorView& gate);
void add(Stream& stream, const TensorView& x, const TensorView& y);
void scale(Stream& stream, const TensorView& x, float factor);
void softcap(Stream& stream, const TensorView& x, float cap);
void gather_rows(Stream& stream, const TensorView& x, const IndexList& rows, const TensorView& y);

void scan_logits(Stream& stream, Workspace& workspace, const TensorView& logits,
                 const TensorView& summaries);

void embedding(Stream& stream, const Weight& table, const IndexList& ids, float scale,
               const TensorView& y);
void rope_tables(Stream& stream, const IndexList& positions, const TensorView& frequencies,
                 const TensorView& cos, const TensorView& sin);
void rope(Stream& stream, const TensorView& x, const TensorView& cos, const TensorView& sin,
          int64_t pair_distance);

void top_k_experts(Stream& stream, const TensorView& logits, const TensorView& expert_scale,
                   const TensorView& experts, const TensorView& weights, RouterSoftmax softmax);
// Fills groups, whose views are taken.
void group_by_expert(Stream& stream, const TensorView& experts, const ExpertGroups& groups);
// See route_in_place().
bool can_route_in_place(const Stream& stream, const TensorView& logits, int64_t k);
// Returns false, having done nothing, if there are too many pairs for one block.
bool route_to_experts(Stream& stream, const TensorView& logits, const TensorView& expert_scale,
                      const TensorView& experts, const TensorView& weights, RouterSoftmax softmax,
                      const ExpertGroups& groups);
void combine_experts(Stream& stream, const TensorView& y, const ExpertGroups& groups,
                     const TensorView& experts, const TensorView& weights, const TensorView& out);

void write_kv(Stream& stream, const TensorView& k, const TensorView& v,
              std::span<const SequenceRows> sequences, const PagedKv& cache);
void attention(Stream& stream, Workspace& workspace, const TensorView& q, const PagedKv& cache,
               std::span<const SequenceRows> sequences, const AttentionOptions& options,
               const TensorView& out);

void causal_conv_silu(Stream& stream, const TensorView& x, const TensorView& weight,
                      const RecurrentLayer& layer, std::span<const RecurrentRows> sequences,
                      const TensorView& y);
void gated_delta(Stream& stream, Workspace& workspace, const GatedDeltaInputs& inputs,
                 const RecurrentLayer& layer, std::span<const RecurrentRows> sequences,
                 const GatedDeltaOptions& options, const TensorView& out);

bool can_delta_step(Stream& stream, const DeltaStepCall& call, const RecurrentLayer& layer,
                    std::span<const RecurrentRows> sequences);
LinearInput delta_step(Stream& stream, Workspace& workspace, const DeltaStepCall& call,
                       const RecurrentLayer& layer, std::span<const RecurrentRows> sequences);

// Whether an input of so many columns becomes codes with one scale a token.
bool takes_token_codes(Stream& stream, const InputRounding& rounding, int64_t cols);
// Under kBF16 or kInt8. What has no elements does not come here.
LinearInput prepare_normed_input(Stream& stream, Workspace& workspace, const TensorView& x,
                                 const TensorView& weight, float epsilon,
                                 const InputRounding& rounding);
LinearInput prepare_gated_input(Stream& stream, Workspace& workspace, Activation activation,
                                const TensorView& gate, const TensorView& up,
                                const InputRounding& rounding);
LinearInput prepare_sigmoid_gated_input(Stream& stream, Workspace& workspace,
                                        const TensorView& gate, const TensorView& x,
                                        const InputRounding& rounding);
// Whether the sums below make inputs of codes of such rows, too.
bool sums_give_codes(const TensorView& x);
// Of inputs of bfloat16; and of rows for which sums_give_codes().
void add_branch(Stream& stream, Workspace& workspace, const ResidualBranch& branch,
                const TensorView& x, std::span<const InputNorm> norms,
                std::span<LinearInput> inputs);
bool can_add_coded_branch(const ResidualBranch& branch, const TensorView& x);
void add_coded_branch(Stream& stream, Workspace& workspace, const ResidualBranch& branch,
                      const TensorView& x, std::span<const InputNorm> norms,
                      std::span<LinearInput> inputs);
void combine_with_dense(Stream& stream, const TensorView& expert_outputs,
                        const ExpertGroups& groups, const TensorView& experts,
                        const TensorView& weights, const NormedBranches& norms,
                        const TensorView& dense);
// The same kind, and whether there is a kernel for these sizes and formats.
bool can_add_experts(Stream& stream, const ExpertRows& experts, const SharedExpert& shared,
                     const TensorView& x);
void add_experts(Stream& stream, Workspace& workspace, const ExpertRows& experts,
                 const SharedExpert& shared, const TensorView& x, std::span<const InputNorm> norms,
                 std::span<LinearInput> inputs);
bool can_add_dense_and_experts(Stream& stream, const ExpertRows& experts,
                               const NormedBranches& halves, const ResidualBranch& branch,
                               const TensorView& x);
void add_dense_and_experts(Stream& stream, Workspace& workspace, const ExpertRows& experts,
                           const NormedBranches& halves, const ResidualBranch& branch,
                           const TensorView& x, std::span<const InputNorm> norms,
                           std::span<LinearInput> inputs);
LinearInput gather_packed_input(Stream& stream, Workspace& workspace, const LinearInput& x,
                                const TensorView& rows);
LinearInput gather_token_codes(Stream& stream, Workspace& workspace, const LinearInput& x,
                               const TensorView& rows);
// k, v: empty if there are only queries. False: not for heads of this size or alignment; then
// nothing is done. queries: whether they are wanted, too.
bool prepare_heads(Stream& stream, const TensorView& q, const TensorView& k, const TensorView& v,
                   const HeadOptions& options, std::span<const SequenceRows> sequences,
                   const PagedKv& cache, bool queries = true);

std::optional<LinearInput> attend_heads(Stream& stream, Workspace& workspace,
                                        const AttendHeadsCall& call, bool rounded);
// Steps with more than a row a sequence, rounded.
std::optional<LinearInput> attend_prompts(Stream& stream, Workspace& workspace,
                                          const AttendHeadsCall& call);
bool gated_mlps(Stream& stream, Workspace& workspace, std::span<const GatedMlpCall> calls);
// The same of inputs of int8 codes: gate, up and activation of each call as one kernel, which finds
// the inputs of experts by itself, then codes of the result and W_down.
bool int8_mlps(Stream& stream, Workspace& workspace, std::span<const GatedMlpCall> calls);
// A call of experts with many tokens: gate, up and activation as one kernel that finds the pairs'
// inputs by itself, then W_down. False: not for these formats and sizes; then nothing is done.
bool wide_gated_mlp(Stream& stream, Workspace& workspace, const GatedMlpCall& call);

LinearInput prepare_linear_input(Stream& stream, Workspace& workspace, const TensorView& x,
                                 const InputRounding& rounding);
// See linear_in_front().
bool linear(Stream& stream, const Weight& w, const LinearInput& x, const TensorView& y,
            int64_t next_bytes);
void grouped_linear(Stream& stream, const Weight& w, const LinearInput& x, const IndexList& offsets,
                    const TensorView& y);

}  // namespace braid::cuda

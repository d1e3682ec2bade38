#pragma once

#include <cstdint>
#include <span>

#include "tensor/stream.h"
#include "tensor/tensor_view.h"
#include "tensor/workspace.h"

namespace braid {

// Over which experts the router's softmax runs.
enum class RouterSoftmax {
  kChosen,  // their weights sum to 1
  kAll,
};

// Chooses each token's experts: the k largest of logits [tokens, experts] (ties: the lower index
// first; NaN counts as the smallest), written by descending logit. weights = the softmax, times
// expert_scale[expert] unless that view is empty. experts: int32 [tokens, k]; weights: float32
// [tokens, k].
void top_k_experts(Stream& stream, const TensorView& logits, const TensorView& expert_scale,
                   const TensorView& experts, const TensorView& weights,
                   RouterSoftmax softmax = RouterSoftmax::kChosen);

// What experts are chosen by, as top_k_experts() does.
struct Router {
  TensorView logits;        // [tokens, experts]
  TensorView expert_scale;  // [experts], or empty
  RouterSoftmax softmax = RouterSoftmax::kChosen;
};

// (token, choice) pairs sorted by expert, then by token. All int32, in the workspace.
struct ExpertGroups {
  TensorView offsets;  // [experts + 1]: pairs of expert e are [offsets[e], offsets[e+1])
  TensorView tokens;   // [tokens · k]: the token of each sorted pair
  TensorView places;   // [tokens · k]: where pair (token, choice) went
  // With logits: nothing of this is in memory yet, nor are the choices; see route_in_place().
  Router router;
};
ExpertGroups group_by_expert(Stream& stream, Workspace& workspace, const TensorView& experts,
                             int64_t num_experts);

// Both of these, with their results: in one go where that is faster.
ExpertGroups route_to_experts(Stream& stream, Workspace& workspace, const TensorView& logits,
                              const TensorView& expert_scale, const TensorView& experts,
                              const TensorView& weights,
                              RouterSoftmax softmax = RouterSoftmax::kChosen);

// For few tokens on some CUDA devices: groups with a router, from whose logits gated_mlps(), then
// add_experts() and add_dense_and_experts() find groups, choices and weights by themselves, with
// the results of route_to_experts(). Nothing is queued. False: groups are as they were.
bool route_in_place(Stream& stream, Workspace& workspace, const Router& router,
                    const TensorView& experts, ExpertGroups& groups);
// Puts all of it into memory after all, for other ops. Nothing happens to groups without a router.
void finish_routing(Stream& stream, ExpertGroups& groups, const TensorView& experts,
                    const TensorView& weights);

// out[t] = Σ_choice weights[t, choice] · y[place of (t, choice)], summed by ascending expert.
// y: [tokens · k, width], on CUDA devices also bfloat16; out: [tokens, width].
void combine_experts(Stream& stream, const TensorView& y, const ExpertGroups& groups,
                     const TensorView& experts, const TensorView& weights, const TensorView& out);

}  // namespace braid

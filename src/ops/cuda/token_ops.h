#pragma once

#include <cstdint>
#include <span>

#include "ops/logits/draw_tokens.h"
#include "ops/logits/feed_tokens.h"
#include "ops/logits/spread_logits.h"

// As cuda_ops.h: the CUDA side of the ops that choose tokens and hand them on.
namespace braid::cuda {

// What an edit of a rule takes of the workspace, unless there are few: itself, and the logit that
// it changes, put aside.
inline constexpr int64_t kDrawnEditBytes = 12 + 4;
void draw_tokens(Stream& stream, Workspace& workspace, const TensorView& logits,
                 std::span<const DrawRule> rules, const TensorView& drawn);
void feed_tokens(Stream& stream, const TensorView& chosen, const IndexList& rows,
                 const TensorView& ids);
void spread_logits(Stream& stream, const TensorView& computed, const TensorView& places,
                   const TensorView& groups, const IndexList& token_order,
                   const TensorView& logits);

}  // namespace braid::cuda

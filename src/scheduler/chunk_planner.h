#pragma once

#include <cstdint>
#include <span>

#include "scheduler/step_plan.h"

namespace braid {

// A sequence with tokens that are known but not computed yet.
struct PendingTokens {
  SequenceState* sequence = nullptr;
  std::span<const int32_t> tokens;
  // kLast: logits of the last pending token only, so chunks before it ask for none.
  WantedLogits logits = WantedLogits::kLast;
  // The last num_drafts tokens are guesses, which follow a single known token. A step with guesses
  // wants the logits of all its tokens and leaves them uncommitted.
  int64_t num_drafts = 0;
};

struct ChunkOptions {
  int64_t budget = 0;     // most tokens in the step
  int64_t alignment = 1;  // Model::prefill_alignment()
};

// Most tokens that plan_chunks puts into one step.
int64_t max_planned_tokens(const ChunkOptions& options);

// Fills `plan` with one round. Sequences with a single known token (those that decode) come first,
// with as many of their guesses as leave room for the others' known tokens, then chunks of the
// longer lists; both in the order of `pending`, which is that of arrival, so a sequence waits only
// for those before it. Those without pending tokens are passed over. Room in the cache is not
// looked at.
//
// A chunk that does not finish its list ends at a position that is a multiple of the alignment,
// whatever else is in the step. If the first chunk finds too little budget left to get there, it
// exceeds the budget by less than the alignment rather than wait.
void plan_chunks(std::span<const PendingTokens> pending, const ChunkOptions& options,
                 StepPlan& plan);

}  // namespace braid

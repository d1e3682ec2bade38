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
};

// Fills `plan` with one round of at most `budget` tokens. Sequences with a single pending token
// (those that decode) come first, then chunks of the longer lists; both in the order of `pending`,
// which is that of arrival, so a sequence waits only for those before it. Those without pending
// tokens are passed over. Room in the cache is not looked at.
void plan_chunks(std::span<const PendingTokens> pending, int64_t budget, StepPlan& plan);

}  // namespace braid

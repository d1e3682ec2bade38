#include "scheduler/chunk_planner.h"

#include <algorithm>

#include "base/check.h"

namespace braid {

void plan_chunks(std::span<const PendingTokens> pending, int64_t budget, StepPlan& plan) {
  BRAID_CHECK(budget > 0, "budget of {} tokens", budget);
  plan.sequences.clear();
  for (const bool decoding : {true, false}) {
    for (const PendingTokens& entry : pending) {
      if (budget == 0) return;
      if (entry.tokens.empty() || (entry.tokens.size() == 1) != decoding) continue;
      const size_t count = std::min(entry.tokens.size(), static_cast<size_t>(budget));
      WantedLogits logits = entry.logits;
      if (logits == WantedLogits::kLast && count < entry.tokens.size())
        logits = WantedLogits::kNone;
      plan.sequences.push_back({entry.sequence, entry.tokens.first(count), logits});
      budget -= static_cast<int64_t>(count);
    }
  }
}

}  // namespace braid

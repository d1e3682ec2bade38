#include "scheduler/step_plan.h"

#include "base/check.h"

namespace braid {

int64_t StepPlan::num_tokens() const {
  int64_t sum = 0;
  for (const SequenceStep& step : sequences) sum += static_cast<int64_t>(step.tokens.size());
  return sum;
}

void commit(const StepPlan& plan, std::span<const int64_t> counts) {
  BRAID_CHECK(counts.size() == plan.sequences.size(), "{} counts for {} sequences", counts.size(),
              plan.sequences.size());
  for (size_t i = 0; i < counts.size(); ++i) plan.sequences[i].sequence->commit(counts[i]);
}

}  // namespace braid

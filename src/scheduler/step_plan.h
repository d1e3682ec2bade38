#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/sequence_state.h"

namespace braid {

// Of which new tokens the logits are wanted.
enum class WantedLogits { kNone, kLast, kAll };

// One sequence's share of a step: the tokens that follow its committed ones. Borrows both.
struct SequenceStep {
  SequenceState* sequence = nullptr;
  std::span<const int32_t> tokens;  // at least one
  WantedLogits logits = WantedLogits::kLast;
  // false: the new tokens stay reserved until the caller commits some of them (or none).
  bool commit = true;
};

// Who computes how many tokens in one forward pass. Each sequence appears at most once.
struct StepPlan {
  std::vector<SequenceStep> sequences;

  int64_t num_tokens() const;
};

// After a step in which no sequence committed by itself: sequence i keeps its first counts[i] new
// tokens.
void commit(const StepPlan& plan, std::span<const int64_t> counts);

}  // namespace braid

#include "scheduler/chunk_planner.h"

#include <algorithm>

#include "base/check.h"

namespace braid {
namespace {

int64_t size_of(std::span<const int32_t> tokens) { return static_cast<int64_t>(tokens.size()); }

bool is_decoding(const PendingTokens& entry) {
  return size_of(entry.tokens) - entry.num_drafts == 1;
}

// Plans the sequences that decode; returns what is left of the budget.
int64_t plan_decoding(std::span<const PendingTokens> pending, int64_t budget, StepPlan& plan) {
  int64_t waiting = std::count_if(pending.begin(), pending.end(), is_decoding);
  for (const PendingTokens& entry : pending) {
    if (budget == 0) break;
    if (!is_decoding(entry)) continue;
    --waiting;
    const int64_t room = std::max<int64_t>(budget - waiting, 1);
    const int64_t count = std::min(size_of(entry.tokens), room);
    const bool guesses = count > 1;
    plan.sequences.push_back({.sequence = entry.sequence,
                              .tokens = entry.tokens.first(static_cast<size_t>(count)),
                              .logits = guesses ? WantedLogits::kAll : entry.logits,
                              .commit = !guesses});
    budget -= count;
  }
  return budget;
}

// Tokens of the next chunk: all that are left, or up to an aligned position; 0 if the budget does
// not reach one.
int64_t chunk_size(const PendingTokens& entry, int64_t budget, int64_t alignment) {
  const int64_t count = size_of(entry.tokens);
  if (count <= budget) return count;
  const int64_t begin = entry.sequence->length();
  return std::max<int64_t>((begin + budget) / alignment * alignment - begin, 0);
}

}  // namespace

int64_t max_planned_tokens(const ChunkOptions& options) {
  return options.budget + options.alignment - 1;
}

void plan_chunks(std::span<const PendingTokens> pending, const ChunkOptions& options,
                 StepPlan& plan) {
  BRAID_CHECK(options.budget > 0 && options.alignment > 0, "budget of {} tokens, alignment {}",
              options.budget, options.alignment);
  plan.sequences.clear();
  int64_t budget = plan_decoding(pending, options.budget, plan);
  bool first = true;
  for (const PendingTokens& entry : pending) {
    if (budget <= 0) return;
    if (entry.tokens.empty() || is_decoding(entry)) continue;
    BRAID_CHECK(entry.num_drafts == 0, "{} guesses after {} tokens", entry.num_drafts,
                entry.tokens.size());
    int64_t count = chunk_size(entry, budget, options.alignment);
    if (count == 0 && first) {
      count = chunk_size(entry, budget + options.alignment - 1, options.alignment);
    }
    if (count == 0) continue;
    first = false;
    const bool whole = count == size_of(entry.tokens);
    const bool none = entry.logits == WantedLogits::kLast && !whole;
    plan.sequences.push_back({.sequence = entry.sequence,
                              .tokens = entry.tokens.first(static_cast<size_t>(count)),
                              .logits = none ? WantedLogits::kNone : entry.logits});
    budget -= count;
  }
}

}  // namespace braid

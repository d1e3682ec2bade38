#include "sampling/token_history.h"

namespace braid {

void TokenHistory::add_prompt(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) entry(token);
}

void TokenHistory::add_output(int32_t token) { ++entry(token).output_count; }

TokenHistory::Entry& TokenHistory::entry(int32_t token) {
  const auto [found, inserted] = index_.try_emplace(token, entries_.size());
  if (inserted) entries_.push_back({.token = token});
  return entries_[found->second];
}

}  // namespace braid

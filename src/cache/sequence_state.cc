#include "cache/sequence_state.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace braid {

SequenceState::SequenceState(CachePool& pool) : pool_(&pool), pages_(pool.num_groups()) {
  for (int g = 0; g < pool.num_groups(); ++g) {
    const CacheGroup& group = pool.plan().groups[g];
    pages_[g].reserve(std::min(group.max_pages_per_sequence, group.num_pages));
  }
}

SequenceState::~SequenceState() {
  if (pool_ != nullptr) shrink(0);
}

SequenceState::SequenceState(SequenceState&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      pages_(std::move(other.pages_)),
      length_(std::exchange(other.length_, 0)),
      reserved_(std::exchange(other.reserved_, 0)),
      written_end_(std::exchange(other.written_end_, 0)) {}

SequenceState& SequenceState::operator=(SequenceState&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(pages_, other.pages_);
  std::swap(length_, other.length_);
  std::swap(reserved_, other.reserved_);
  std::swap(written_end_, other.written_end_);
  return *this;
}

int64_t SequenceState::remaining_tokens() const {
  return pool_->plan().options.max_sequence_tokens - length_ - reserved_;
}

int64_t SequenceState::pages_needed(int group, int64_t num_tokens) const {
  const CachePlan& plan = pool_->plan();
  return pages_for_tokens(plan.groups[group], plan.options.page_tokens, num_tokens);
}

bool SequenceState::reserve(int64_t n) {
  BRAID_CHECK(n >= 0 && n <= pool_->plan().options.max_step_tokens - reserved_,
              "{} tokens beside {} reserved, a step has at most {}", n, reserved_,
              pool_->plan().options.max_step_tokens);
  if (n > remaining_tokens()) return false;
  const int64_t end = length_ + reserved_ + n;
  for (int g = 0; g < pool_->num_groups(); ++g) {
    const int64_t missing = pages_needed(g, end) - static_cast<int64_t>(pages_[g].size());
    if (missing > pool_->num_free_pages(g)) return false;
  }
  for (int g = 0; g < pool_->num_groups(); ++g) {
    const size_t needed = static_cast<size_t>(pages_needed(g, end));
    while (pages_[g].size() < needed) pages_[g].push_back(pool_->allocators_[g].take());
  }
  reserved_ += n;
  written_end_ = std::max(written_end_, end);
  return true;
}

void SequenceState::commit(int64_t m) {
  BRAID_CHECK(m >= 0 && m <= reserved_, "commit {} of {} reserved tokens", m, reserved_);
  length_ += m;
  reserved_ = 0;
  shrink(length_);
}

int64_t SequenceState::min_truncate_length() const {
  int64_t min_length = std::min<int64_t>(length_, 1);
  for (const CacheGroup& group : pool_->plan().groups) {
    if (group.window <= 1) continue;  // all rows are kept, or none is seen again
    // A slot holds the last token written to it: the oldest token left is one ring before the end.
    const int64_t ring_tokens = group.max_pages_per_sequence * pool_->plan().options.page_tokens;
    const int64_t oldest = written_end_ - ring_tokens;
    if (oldest > 0) min_length = std::max(min_length, oldest + group.window - 1);
  }
  return min_length;
}

bool SequenceState::truncate(int64_t length) {
  BRAID_CHECK(length >= 0 && length <= length_ && reserved_ == 0,
              "truncate to {} of {} tokens, {} reserved", length, length_, reserved_);
  if (length == length_) return true;
  if (length == 0) {
    written_end_ = 0;
  } else if (length < min_truncate_length()) {
    return false;
  }
  length_ = length;
  shrink(length);
  return true;
}

void SequenceState::shrink(int64_t num_tokens) {
  for (int g = 0; g < static_cast<int>(pages_.size()); ++g) {
    const size_t needed = static_cast<size_t>(pages_needed(g, num_tokens));
    while (pages_[g].size() > needed) {
      pool_->allocators_[g].give_back(pages_[g].back());
      pages_[g].pop_back();
    }
  }
}

}  // namespace braid

#include "cache/sequence_state.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace braid {

SequenceState::SequenceState(CachePool& pool)
    : pool_(&pool), pages_(pool.num_groups()), slots_(pool.num_recurrent_groups(), -1) {
  for (int g = 0; g < pool.num_groups(); ++g) {
    const CacheGroup& group = pool.plan().groups[g];
    pages_[g].reserve(std::min(group.max_pages_per_sequence, group.num_pages));
  }
}

SequenceState::~SequenceState() {
  if (pool_ == nullptr) return;
  shrink(0);
  give_back_slots();
}

SequenceState::SequenceState(SequenceState&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      pages_(std::move(other.pages_)),
      slots_(std::move(other.slots_)),
      length_(std::exchange(other.length_, 0)),
      reserved_(std::exchange(other.reserved_, 0)),
      written_end_(std::exchange(other.written_end_, 0)),
      num_replayed_(std::exchange(other.num_replayed_, 0)),
      written_(std::exchange(other.written_, Written::kNothing)) {}

SequenceState& SequenceState::operator=(SequenceState&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(pages_, other.pages_);
  std::swap(slots_, other.slots_);
  std::swap(length_, other.length_);
  std::swap(reserved_, other.reserved_);
  std::swap(written_end_, other.written_end_);
  std::swap(num_replayed_, other.num_replayed_);
  std::swap(written_, other.written_);
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
  BRAID_CHECK(valid(), "the sequence's recurrent state is lost");
  if (n > remaining_tokens()) return false;
  const int64_t end = length_ + reserved_ + n;
  for (int g = 0; g < pool_->num_groups(); ++g) {
    const int64_t missing = pages_needed(g, end) - static_cast<int64_t>(pages_[g].size());
    if (missing > pool_->num_free_pages(g)) return false;
  }
  for (size_t g = 0; g < slots_.size() && end > 0; ++g) {
    if (slots_[g] < 0 && pool_->num_free_slots(static_cast<int>(g)) == 0) return false;
  }
  for (int g = 0; g < pool_->num_groups(); ++g) {
    const size_t needed = static_cast<size_t>(pages_needed(g, end));
    while (pages_[g].size() < needed) pages_[g].push_back(pool_->allocators_[g].take());
  }
  for (size_t g = 0; g < slots_.size() && end > 0; ++g) {
    if (slots_[g] < 0) slots_[g] = pool_->slot_allocators_[g].take();
  }
  reserved_ += n;
  written_end_ = std::max(written_end_, end);
  return true;
}

void SequenceState::commit(int64_t m) {
  BRAID_CHECK(m >= 0 && m <= reserved_, "commit {} of {} reserved tokens", m, reserved_);
  if (recurrent() && valid()) {
    const bool whole = written_ == Written::kInPlace && m == reserved_;
    const bool none = written_ == Written::kNothing && m == 0;
    BRAID_CHECK(whole || none || written_ == Written::kLogged,
                "commit {} of {} tokens, whose recurrent state cannot be stepped back", m,
                reserved_);
    if (written_ == Written::kLogged) num_replayed_ = static_cast<int32_t>(m);
    written_ = Written::kNothing;
  }
  length_ += m;
  reserved_ = 0;
  shrink(length_);
  if (length_ == 0) give_back_slots();
}

void SequenceState::set_written(bool logged) {
  if (!recurrent()) return;
  BRAID_CHECK(valid() && written_ == Written::kNothing, "written twice before a commit");
  BRAID_CHECK(!logged || reserved_ <= pool_->plan().options.max_logged_tokens,
              "{} tokens in a log of {}", reserved_, pool_->plan().options.max_logged_tokens);
  written_ = logged ? Written::kLogged : Written::kInPlace;
  num_replayed_ = 0;
}

void SequenceState::invalidate() {
  // An empty sequence has no state that could be lost.
  if (recurrent() && length_ > 0) written_ = Written::kBroken;
}

int64_t SequenceState::min_truncate_length() const {
  const int64_t min_length = min_truncate_length_of_pages();
  // The state itself is that before the tokens to be replayed.
  return recurrent() ? std::max(min_length, length_ - num_replayed_) : min_length;
}

int64_t SequenceState::min_truncate_length_of_pages() const {
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
  if (length == 0) {
    written_end_ = 0;
    num_replayed_ = 0;
    written_ = Written::kNothing;
    give_back_slots();
  } else if (!valid() || length < min_truncate_length()) {
    return false;
  } else if (recurrent()) {
    num_replayed_ -= static_cast<int32_t>(length_ - length);
  }
  length_ = length;
  shrink(length);
  return true;
}

RecurrentSnapshot SequenceState::snapshot() const {
  BRAID_CHECK(valid() && reserved_ == 0 && length_ > 0, "a snapshot at length {}, {} reserved",
              length_, reserved_);
  RecurrentSnapshot snapshot{.length = length_, .num_replayed = num_replayed_, .values = {}};
  for (size_t g = 0; g < slots_.size(); ++g) {
    pool_->slots_[g].save(slots_[g], num_replayed_, snapshot.values);
  }
  return snapshot;
}

bool SequenceState::truncate(const RecurrentSnapshot& snapshot) {
  BRAID_CHECK(snapshot.length > 0 && snapshot.length <= length_ && reserved_ == 0,
              "truncate to a snapshot at {} of {} tokens, {} reserved", snapshot.length, length_,
              reserved_);
  if (!valid() || snapshot.length < min_truncate_length_of_pages()) return false;
  size_t offset = 0;
  for (size_t g = 0; g < slots_.size(); ++g) {
    pool_->slots_[g].load(slots_[g], snapshot.num_replayed, snapshot.values, offset);
  }
  BRAID_CHECK(offset == snapshot.values.size(), "a snapshot of {} values, {} taken",
              snapshot.values.size(), offset);
  num_replayed_ = snapshot.num_replayed;
  length_ = snapshot.length;
  shrink(length_);
  return true;
}

void SequenceState::give_back_slots() {
  for (size_t g = 0; g < slots_.size(); ++g) {
    if (slots_[g] >= 0) pool_->slot_allocators_[g].give_back(slots_[g]);
    slots_[g] = -1;
  }
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

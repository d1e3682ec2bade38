#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/cache_pool.h"

namespace braid {

// What one sequence remembers: its pages and slots in every group of a pool. Every use is the same
// protocol: reserve(n) finds room, the forward pass writes the rows of tokens [length, length + n),
// commit(m) keeps the first m of them and forgets the rest. Host data only; used by the pool's
// thread.
//
// A recurrent state has no rows to forget. A step that may be taken back in part is logged (see
// ops/gated_delta/recurrent_store.h): commit only notes how many tokens of the log hold, and the
// next forward pass applies them. A step that is not logged must be committed whole.
class SequenceState {
 public:
  // An empty sequence, which holds nothing. The pool must outlive it.
  explicit SequenceState(CachePool& pool);
  // Gives everything back.
  ~SequenceState();
  SequenceState(SequenceState&& other) noexcept;
  SequenceState& operator=(SequenceState&& other) noexcept;
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  int64_t length() const { return length_; }      // committed tokens
  int64_t reserved() const { return reserved_; }  // tokens with room but not committed
  // How many tokens may still be reserved before the longest allowed length, pages permitting.
  int64_t remaining_tokens() const;

  // Finds room for n more tokens in every group, or changes nothing and returns false: some group
  // has too few free pages or no free slot, or n > remaining_tokens() (waiting does not help then).
  // More than max_step_tokens reserved at once is a bug of the caller.
  bool reserve(int64_t n);

  // Keeps the first m reserved tokens, 0 <= m <= reserved(), and gives back the pages that lie
  // wholly beyond them. Rows that tokens after the new end can see are as if the forgotten ones
  // had never been written.
  void commit(int64_t m);

  // Forgets committed tokens, down to `length`. Returns false and changes nothing if a window group
  // has already overwritten a row that the next token would see, or a recurrent state has gone
  // past it; length 0 always works. Nothing may be reserved.
  bool truncate(int64_t length);
  // The shortest non-zero length to which truncate works.
  int64_t min_truncate_length() const;

  // The recurrent layers as they are now, nothing being reserved. With a snapshot, truncate to its
  // length works if the pages allow; the snapshot must be this sequence's own.
  RecurrentSnapshot snapshot() const;
  bool truncate(const RecurrentSnapshot& snapshot);

  // Page list for SequenceRows: token p is in pages[(p / page_tokens) % pages.size()]. Valid until
  // the next call that is not const.
  std::span<const int32_t> pages(int group) const { return pages_.at(group); }
  const CachePool& pool() const { return *pool_; }

  // For RecurrentRows: the slot in a recurrent group (-1: none yet), and how many logged tokens the
  // next forward pass has to apply.
  int32_t slot(int recurrent_group) const { return slots_.at(recurrent_group); }
  int32_t num_replayed() const { return num_replayed_; }
  // The forward pass has written the reserved tokens, into the log or not, and has applied what was
  // to be replayed.
  void set_written(bool logged);
  // A forward pass broke off half-way: what the recurrent layers hold is of no use. No effect on
  // pools without them and on empty sequences. Only truncate(0) makes the sequence usable again.
  void invalidate();
  bool valid() const { return written_ != Written::kBroken; }

 private:
  // What became of the recurrent state since the last commit.
  enum class Written : uint8_t { kNothing, kInPlace, kLogged, kBroken };

  bool recurrent() const { return !slots_.empty(); }
  void give_back_slots();
  int64_t min_truncate_length_of_pages() const;
  int64_t pages_needed(int group, int64_t num_tokens) const;
  void shrink(int64_t num_tokens);

  CachePool* pool_;
  std::vector<std::vector<int32_t>> pages_;  // one list a group
  std::vector<int32_t> slots_;               // one a recurrent group
  int64_t length_ = 0;
  int64_t reserved_ = 0;
  int64_t written_end_ = 0;  // highest length + reserved so far: rings have been written up to here
  int32_t num_replayed_ = 0;
  Written written_ = Written::kNothing;
};

}  // namespace braid

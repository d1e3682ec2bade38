#pragma once

#include <array>
#include <unordered_map>

#include "speculative/drafter.h"

namespace braid {

// Prompt lookup: if the newest tokens stood in the sequence before, it guesses that what followed
// them then follows now. The longest match counts, of equally long ones the most recent. Costs
// nothing but memory, a few words a token; a round looks at new tokens only.
class NgramDrafter : public Drafter {
 public:
  static constexpr int kMinMatch = 2;
  static constexpr int kMaxMatch = 4;

  std::string_view name() const override { return "ngram"; }
  void draft(std::span<DraftRequest> requests) override;
  void rewind(int64_t sequence, int64_t length) override;
  void forget(int64_t sequence) override { sequences_.erase(sequence); }

 private:
  // For each length of match: where the token that followed the n-gram's last occurrence is. Keys
  // are hashes; a match is compared token by token.
  struct Index {
    int64_t num_indexed = 0;  // tokens whose n-grams (those that end in them) are in
    std::array<std::unordered_map<uint64_t, int32_t>, kMaxMatch - kMinMatch + 1> next_position;
  };

  static void extend(Index& index, std::span<const int32_t> tokens);
  // Position of the guessed token, or -1.
  static int64_t find(const Index& index, std::span<const int32_t> tokens);

  std::unordered_map<int64_t, Index> sequences_;
};

}  // namespace braid

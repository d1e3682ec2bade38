#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

using TokenId = int32_t;

// Token strings by id and ids by string. Ids may have gaps; strings are arbitrary bytes.
class Vocabulary {
 public:
  static constexpr TokenId kMaxTokens = 1 << 22;

  enum class Inserted { kNew, kTextTaken, kIdTaken, kOutOfRange };

  void reserve(size_t tokens, size_t bytes);

  // kTextTaken: the id now has this text, but find() keeps answering with the earlier id.
  // kIdTaken, kOutOfRange: nothing was stored.
  Inserted insert(TokenId id, std::string_view text);

  TokenId size() const { return static_cast<TokenId>(entries_.size()); }  // largest id + 1
  bool contains(TokenId id) const {
    return id >= 0 && id < size() && entries_[id].length != kAbsent;
  }
  // Empty for an id that has no token. Valid until the next insert.
  std::string_view text(TokenId id) const {
    if (!contains(id)) return {};
    return std::string_view(arena_).substr(entries_[id].offset, entries_[id].length);
  }
  std::optional<TokenId> find(std::string_view text) const;

 private:
  static constexpr uint32_t kAbsent = UINT32_MAX;
  struct Entry {
    uint32_t offset = 0;
    uint32_t length = kAbsent;
  };

  void grow_slots(size_t tokens);

  std::string arena_;
  std::vector<Entry> entries_;
  // Open addressing: high half of the hash, then id + 1 (0: free).
  std::vector<uint64_t> slots_;
  size_t num_indexed_ = 0;
};

}  // namespace braid

#include "tokenizer/vocabulary.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/error.h"

namespace braid {

void Vocabulary::reserve(size_t tokens, size_t bytes) {
  entries_.reserve(std::min<size_t>(tokens, kMaxTokens));
  arena_.reserve(bytes);
  grow_slots(std::min<size_t>(tokens, kMaxTokens));
}

void Vocabulary::grow_slots(size_t tokens) {
  const size_t wanted = std::bit_ceil(std::max<size_t>(tokens, 32) * 2);
  if (wanted <= slots_.size()) return;
  std::vector<uint64_t> old(wanted, 0);
  old.swap(slots_);
  const size_t mask = wanted - 1;
  for (const uint64_t slot : old) {
    if (slot == 0) continue;
    const size_t hash = std::hash<std::string_view>()(text(static_cast<TokenId>(slot) - 1));
    size_t at = hash & mask;
    while (slots_[at] != 0) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

Vocabulary::Inserted Vocabulary::insert(TokenId id, std::string_view text) {
  if (id < 0 || id >= kMaxTokens) return Inserted::kOutOfRange;
  if (contains(id)) return Inserted::kIdTaken;
  if (arena_.size() + text.size() >= UINT32_MAX)
    throw Error("the vocabulary exceeds 4 GiB of text");
  if (id >= size()) entries_.resize(id + 1);
  entries_[id] = {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(text.size())};
  arena_ += text;

  if ((num_indexed_ + 1) * 2 > slots_.size()) grow_slots(num_indexed_ + 1);
  const size_t mask = slots_.size() - 1;
  const size_t hash = std::hash<std::string_view>()(text);
  const uint64_t tag = hash >> 32 << 32;
  size_t at = hash & mask;
  for (; slots_[at] != 0; at = (at + 1) & mask) {
    const auto other = static_cast<TokenId>(static_cast<uint32_t>(slots_[at]) - 1);
    if ((slots_[at] >> 32 << 32) == tag && this->text(other) == text) return Inserted::kTextTaken;
  }
  slots_[at] = tag | static_cast<uint32_t>(id + 1);
  ++num_indexed_;
  return Inserted::kNew;
}

std::optional<TokenId> Vocabulary::find(std::string_view text) const {
  if (slots_.empty()) return std::nullopt;
  const size_t mask = slots_.size() - 1;
  const size_t hash = std::hash<std::string_view>()(text);
  const uint64_t tag = hash >> 32 << 32;
  for (size_t at = hash & mask; slots_[at] != 0; at = (at + 1) & mask) {
    const auto id = static_cast<TokenId>(static_cast<uint32_t>(slots_[at]) - 1);
    if ((slots_[at] >> 32 << 32) == tag && this->text(id) == text) return id;
  }
  return std::nullopt;
}

}  // namespace braid

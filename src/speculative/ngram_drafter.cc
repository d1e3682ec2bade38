#include "speculative/ngram_drafter.h"

#include <algorithm>

namespace braid {
namespace {

// FNV-1a over the tokens [end - n, end).
uint64_t hash_ngram(std::span<const int32_t> tokens, int64_t end, int n) {
  uint64_t hash = 0xcbf29ce484222325;
  for (int64_t i = end - n; i < end; ++i) {
    hash = (hash ^ static_cast<uint32_t>(tokens[static_cast<size_t>(i)])) * 0x100000001b3;
  }
  return hash;
}

}  // namespace

void NgramDrafter::draft(std::span<DraftRequest> requests) {
  for (DraftRequest& request : requests) {
    request.drafts.clear();
    Index& index = sequences_[request.sequence];
    // The newest n-gram itself must not be found.
    if (!request.tokens.empty()) extend(index, request.tokens.first(request.tokens.size() - 1));
    if (request.max_drafts <= 0) continue;
    int64_t next = find(index, request.tokens);
    if (next < 0) continue;
    const int64_t length = static_cast<int64_t>(request.tokens.size());
    // A match that overlaps the end goes on into the drafts: a repetition of short period.
    for (int64_t i = 0; i < request.max_drafts; ++i, ++next) {
      request.drafts.push_back(next < length ? request.tokens[static_cast<size_t>(next)]
                                             : request.drafts[static_cast<size_t>(next - length)]);
    }
  }
}

void NgramDrafter::extend(Index& index, std::span<const int32_t> tokens) {
  const int64_t length = static_cast<int64_t>(tokens.size());
  for (int64_t end = index.num_indexed + 1; end <= length; ++end) {
    for (int n = kMinMatch; n <= kMaxMatch && n <= end; ++n) {
      index.next_position[n - kMinMatch][hash_ngram(tokens, end, n)] = static_cast<int32_t>(end);
    }
  }
  index.num_indexed = std::max(index.num_indexed, length);
}

int64_t NgramDrafter::find(const Index& index, std::span<const int32_t> tokens) {
  const int64_t length = static_cast<int64_t>(tokens.size());
  for (int n = kMaxMatch; n >= kMinMatch; --n) {
    if (n >= length) continue;
    const auto& table = index.next_position[n - kMinMatch];
    const auto found = table.find(hash_ngram(tokens, length, n));
    if (found == table.end()) continue;
    const auto suffix = tokens.last(static_cast<size_t>(n));
    const auto match = tokens.subspan(static_cast<size_t>(found->second - n), suffix.size());
    if (std::equal(suffix.begin(), suffix.end(), match.begin())) return found->second;
  }
  return -1;
}

// Entries of the forgotten tokens may have replaced older ones, so the table is made anew from what
// the next round brings.
void NgramDrafter::rewind(int64_t sequence, int64_t) { sequences_.erase(sequence); }

}  // namespace braid

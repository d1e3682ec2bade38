#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace braid {
namespace {

size_t leading_space_bytes(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const Utf8Step step = utf8_step(text.substr(bytes));
    if (!is_whitespace(step.code_point)) break;
    bytes += step.length;
  }
  return bytes;
}

// Where the white space at the end of the text begins.
size_t trailing_space_begin(std::string_view text) {
  while (!text.empty()) {
    const char32_t last = utf8_last(text);
    if (!is_whitespace(last)) break;
    std::string encoded;
    utf8_append(encoded, last);
    text.remove_suffix(encoded.size());
  }
  return text.size();
}

}  // namespace

int32_t AddedTokenMatcher::child(int32_t node, char byte) const {
  int32_t at = nodes_[node].first_child;
  while (at >= 0 && nodes_[at].byte != byte) at = nodes_[at].next_sibling;
  return at;
}

void AddedTokenMatcher::add(std::string_view pattern, const AddedToken& token) {
  if (pattern.empty()) return;
  int32_t node = 0;
  for (const char byte : pattern) {
    int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({-1, nodes_[node].first_child, -1, byte});
      nodes_[node].first_child = next;
      if (node == 0) roots_[static_cast<unsigned char>(byte)] = next;
    }
    node = next;
  }
  if (nodes_[node].token >= 0) return;
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

std::vector<AddedTokenMatcher::Piece> AddedTokenMatcher::split(std::string_view text,
                                                               bool parse_special) const {
  std::vector<Piece> pieces;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    int32_t node = roots_[static_cast<unsigned char>(text[at])];
    size_t end = at + 1;
    const AddedToken* token = nullptr;
    size_t token_end = 0;
    while (node >= 0) {
      if (nodes_[node].token >= 0) {
        token = &tokens_[nodes_[node].token];
        token_end = end;
      }
      if (end == text.size()) break;
      node = child(node, text[end++]);
    }
    if (!token) {
      ++at;
      continue;
    }
    size_t begin = at;
    at = token_end;
    if (token->special && !parse_special) continue;
    if (token->single_word) {
      const bool word_before = begin > 0 && is_word(utf8_last(text.substr(0, begin)));
      const bool word_behind = at < text.size() && is_word(utf8_first(text.substr(at)));
      if (word_before || word_behind) continue;
    }
    if (token->lstrip) begin = std::max(trailing_space_begin(text.substr(0, begin)), done);
    // The search goes on right behind the token itself, as the published tokenizers do: white space
    // taken by rstrip may still begin another token.
    size_t stop = at;
    if (token->rstrip) stop += leading_space_bytes(text.substr(at));
    if (done < begin) pieces.push_back({text.substr(done, begin - done), nullptr});
    pieces.push_back({text.substr(begin, stop - std::min(begin, stop)), token});
    done = stop;
  }
  if (done < text.size()) pieces.push_back({text.substr(done), nullptr});
  return pieces;
}

}  // namespace braid

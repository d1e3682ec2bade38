#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/vocabulary.h"

namespace braid {

// A token cut out of the text before the rest is split and merged.
struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space behind it
  bool normalized = false;   // looked for in the normalised text
  bool special = false;      // control-like
};

// Finds added tokens: leftmost first, then the longest. Immutable once filled; thread-safe.
class AddedTokenMatcher {
 public:
  struct Piece {
    std::string_view text;
    const AddedToken* token;  // null for ordinary text
  };

  // pattern: what stands in the text for this token. An empty pattern or a repeated one is ignored.
  void add(std::string_view pattern, const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  // Cuts the text into pieces, none empty. Special tokens stay text when parse_special is false.
  std::vector<Piece> split(std::string_view text, bool parse_special) const;

 private:
  struct Node {
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    int32_t token = -1;  // index into tokens_
    char byte = 0;
  };
  int32_t child(int32_t node, char byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);  // [0]: the root
  std::array<int32_t, 256> roots_ = [] {
    std::array<int32_t, 256> none;
    none.fill(-1);
    return none;
  }();
  std::vector<AddedToken> tokens_;
};

}  // namespace braid

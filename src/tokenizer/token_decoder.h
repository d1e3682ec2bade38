#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/regex.h"

namespace braid {

// What a token string contributes to decoded text, as bytes. Immutable and thread-safe.
class TokenDecoder {
 public:
  struct Replace {
    Regex pattern;
    std::string content;
  };
  struct ByteFallback {};  // <0xHH> is that byte
  struct ByteLevel {};     // GPT-2's byte alphabet
  struct Strip {           // up to `start` leading and `stop` trailing code points equal to content
    char32_t content;
    size_t start;
    size_t stop;
  };
  struct Metaspace {  // the mark is a space, and nothing in the first token when prepended
    std::string replacement;
    bool prepended;
  };
  using Step = std::variant<Replace, ByteFallback, ByteLevel, Strip, Metaspace>;

  // For the joined text: leading code points to drop.
  struct LeadingStrip {
    char32_t content = 0;
    size_t count = 0;
  };

  TokenDecoder() = default;
  TokenDecoder(std::vector<Step> steps, LeadingStrip leading)
      : steps_(std::move(steps)), leading_(leading) {}

  // first: no token before this one contributed. added: an added token, which stands for itself
  // where the others are written in the byte alphabet.
  std::string bytes(std::string_view token, bool first, bool added) const;

  const LeadingStrip& leading_strip() const { return leading_; }

 private:
  std::vector<Step> steps_;
  LeadingStrip leading_;
};

}  // namespace braid

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokenizer/regex.h"

namespace braid {

// A text and the parts of it that are merged each on its own, in order.
struct TextPieces {
  std::string text;
  std::vector<TextRange> ranges;
  bool starts_input = false;  // text[0] is the first of the whole input
};

// Splits pieces further, and may rewrite them. Immutable and thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(TextPieces& pieces) const = 0;
};

using PreTokenizerPtr = std::unique_ptr<const PreTokenizer>;

// What becomes of the parts that a pattern matches.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// When a piece that does not begin with the space mark gets one.
enum class PrependScheme { kAlways, kNever, kFirst };

PreTokenizerPtr make_split(Regex pattern, SplitBehavior behavior, bool invert);
PreTokenizerPtr make_whitespace_split();
PreTokenizerPtr make_digits(bool individual);
PreTokenizerPtr make_punctuation(SplitBehavior behavior);
// Maps bytes to GPT-2's alphabet; use_regex splits by GPT-2's pattern first.
PreTokenizerPtr make_byte_level(bool add_prefix_space, bool use_regex);
PreTokenizerPtr make_metaspace(std::string replacement, PrependScheme scheme, bool split);
PreTokenizerPtr make_pre_tokenizer_sequence(std::vector<PreTokenizerPtr> steps);

}  // namespace braid

#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace braid {

// Rewrites a piece of text before it is split. Immutable, thread-safe; text is well-formed UTF-8.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual std::string apply(std::string_view text) const = 0;
};

using NormalizerPtr = std::unique_ptr<const Normalizer>;

NormalizerPtr make_replace_normalizer(Regex pattern, std::string content);
NormalizerPtr make_prepend_normalizer(std::string prefix);  // to texts that are not empty
NormalizerPtr make_unicode_normalizer(NormalForm form);
NormalizerPtr make_lowercase_normalizer();
NormalizerPtr make_strip_accents_normalizer();
NormalizerPtr make_strip_normalizer(bool left, bool right);
NormalizerPtr make_byte_level_normalizer();
NormalizerPtr make_normalizer_sequence(std::vector<NormalizerPtr> steps);

// The text with every match of the pattern replaced.
std::string replace_all(std::string_view text, const Regex& pattern, std::string_view content);

}  // namespace braid

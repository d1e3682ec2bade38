#pragma once

#include <string>
#include <string_view>

namespace braid {

// Character classes as the published tokenizers use them (Rust's char methods and regex classes).
bool is_whitespace(char32_t c);   // property White_Space
bool is_numeric(char32_t c);      // categories Nd, Nl, No
bool is_word(char32_t c);         // \w: alphabetic, mark, decimal digit, connector, joiner
bool is_punctuation(char32_t c);  // categories P*, and the symbols of ASCII

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// text must be well-formed UTF-8.
std::string normalize_unicode(std::string_view text, NormalForm form);
std::string lowercase(std::string_view text);
std::string remove_marks(std::string_view text);  // drops categories M*

}  // namespace braid

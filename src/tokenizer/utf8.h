#pragma once

#include <string>
#include <string_view>

namespace braid {

inline constexpr char32_t kReplacementCodePoint = 0xFFFD;
inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

enum class Utf8Status { kValid, kIncomplete, kInvalid };

struct Utf8Step {
  Utf8Status status;
  int length;  // bytes
  char32_t code_point;
};

// Reads the first code point of a non-empty text.
// kValid: a well-formed sequence of `length` bytes. kIncomplete: the whole text is a proper prefix
// of a well-formed sequence. kInvalid: the first `length` bytes are the longest ill-formed prefix,
// which one U+FFFD replaces (Unicode 15, section 3.9, "maximal subpart").
Utf8Step utf8_step(std::string_view text);

bool utf8_is_valid(std::string_view text);

// The text with each ill-formed part replaced by U+FFFD.
std::string utf8_repair(std::string_view text);

void utf8_append(std::string& text, char32_t code_point);

// Bytes of the sequence that starts with this byte; the text must be well formed.
inline int utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// First and last code point of a well-formed, non-empty text.
char32_t utf8_first(std::string_view text);
char32_t utf8_last(std::string_view text);

// Turns a stream of bytes into well-formed text. A sequence that is still incomplete is held back.
class Utf8Repairer {
 public:
  std::string push(std::string_view bytes);
  // What is held back, as U+FFFD; the stream is then at its start again.
  std::string flush();

 private:
  std::string pending_;
};

}  // namespace braid

#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace braid {

// GPT-2's byte alphabet: each byte is written as one printable code point, so that a vocabulary
// over bytes can be stored as text.

// Appends the code points of the bytes.
void append_byte_level(std::string& text, std::string_view bytes);

// The bytes that the text stands for; nullopt when it holds a code point outside the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view text);

}  // namespace braid

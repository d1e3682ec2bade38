#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid::jinja {

// Strings are UTF-8; positions and lengths in these functions count code points where the name
// says so and bytes otherwise.

bool is_ascii(std::string_view text);
bool is_valid_utf8(std::string_view text);
// Ill-formed sequences become U+FFFD.
std::string to_valid_utf8(std::string_view text);
// Decodes the code point at byte `position` and moves past it; `text` is valid UTF-8.
char32_t next_code_point(std::string_view text, size_t& position);
void append_utf8(std::string& out, char32_t code_point);
size_t code_point_count(std::string_view text);
// Byte offset of the code point with this index (clamped to the end).
size_t byte_offset(std::string_view text, size_t code_point_index);
// text[start:stop:step] as Python resolves missing and negative bounds.
std::string slice_text(std::string_view text, std::optional<int64_t> start,
                       std::optional<int64_t> stop, int64_t step);

// What Python's str.isspace() and the regular expression \s accept.
bool is_space(char32_t code_point);
bool is_line_break(char32_t code_point);
bool is_printable(char32_t code_point);
bool is_alphabetic(char32_t code_point);
bool is_decimal(char32_t code_point);
bool is_digit(char32_t code_point);
bool is_numeric(char32_t code_point);
bool is_cased(char32_t code_point);
bool is_word(char32_t code_point);  // the regular expression \w

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title_case(std::string_view text);  // str.title()
std::string swap_case(std::string_view text);

enum class Side { kLeft = 1, kRight = 2, kBoth = 3 };
// Strips white space, or any of the code points in `characters`.
std::string_view strip(std::string_view text, Side side,
                       std::optional<std::string_view> characters = std::nullopt);

// str.split / rsplit; without separator on runs of white space. limit < 0: no limit.
std::vector<std::string_view> split(std::string_view text,
                                    std::optional<std::string_view> separator, int64_t limit,
                                    bool from_right);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        int64_t limit);
std::string html_escape(std::string_view text);

}  // namespace braid::jinja

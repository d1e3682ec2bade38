#include "tokenizer/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

namespace braid::jinja {
namespace {

// Length of the well-formed sequence at `position`, or 0.
size_t sequence_length(std::string_view text, size_t position) {
  utf8proc_int32_t code_point = -1;
  const utf8proc_ssize_t length =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + position,
                       static_cast<utf8proc_ssize_t>(text.size() - position), &code_point);
  return length > 0 && code_point >= 0 ? static_cast<size_t>(length) : 0;
}

utf8proc_category_t category(char32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

struct SpecialCase {
  char32_t from;
  const char* upper;
  const char* title;
};

// Code points whose upper-case form has several code points (Unicode SpecialCasing.txt, the
// entries without condition that occur in ordinary text).
constexpr std::array kSpecialCases = {
    SpecialCase{0xDF, "SS", "Ss"},
    SpecialCase{0x149, "\u02BCN", "\u02BCN"},
    SpecialCase{0x1F0, "J\u030C", "J\u030C"},
    SpecialCase{0x390, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
    SpecialCase{0x3B0, "\u03A5\u0308\u0301", "\u03A5\u0308\u0301"},
    SpecialCase{0x587, "\u0535\u0552", "\u0535\u0582"},
    SpecialCase{0x1E96, "H\u0331", "H\u0331"},
    SpecialCase{0x1E97, "T\u0308", "T\u0308"},
    SpecialCase{0x1E98, "W\u030A", "W\u030A"},
    SpecialCase{0x1E99, "Y\u030A", "Y\u030A"},
    SpecialCase{0xFB00, "FF", "Ff"},
    SpecialCase{0xFB01, "FI", "Fi"},
    SpecialCase{0xFB02, "FL", "Fl"},
    SpecialCase{0xFB03, "FFI", "Ffi"},
    SpecialCase{0xFB04, "FFL", "Ffl"},
    SpecialCase{0xFB05, "ST", "St"},
    SpecialCase{0xFB06, "ST", "St"},
};

const SpecialCase* special_case(char32_t code_point) {
  if (code_point < 0xDF) return nullptr;
  const auto found =
      std::find_if(kSpecialCases.begin(), kSpecialCases.end(),
                   [code_point](const SpecialCase& entry) { return entry.from == code_point; });
  return found == kSpecialCases.end() ? nullptr : &*found;
}

void append_upper(std::string& out, char32_t code_point) {
  if (const SpecialCase* special = special_case(code_point)) {
    out += special->upper;
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<int32_t>(code_point))));
  }
}

void append_title(std::string& out, char32_t code_point) {
  if (const SpecialCase* special = special_case(code_point)) {
    out += special->title;
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<int32_t>(code_point))));
  }
}

bool is_case_ignorable(char32_t code_point) {
  switch (category(code_point)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return code_point == U'\'' || code_point == U'.' || code_point == U':' ||
             code_point == 0xB7 || code_point == 0x2019;
  }
}

std::u32string decode(std::string_view text) {
  std::u32string result;
  result.reserve(text.size());
  for (size_t position = 0; position < text.size();) {
    result += next_code_point(text, position);
  }
  return result;
}

// A capital sigma at the end of a word becomes the final form.
bool is_final_sigma(const std::u32string& text, size_t index) {
  size_t before = index;
  while (before > 0 && is_case_ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  size_t after = index + 1;
  while (after < text.size() && is_case_ignorable(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

void append_lower(std::string& out, const std::u32string& text, size_t index) {
  const char32_t code_point = text[index];
  if (code_point == 0x130) {
    out += "i\u0307";
  } else if (code_point == 0x3A3) {
    append_utf8(out, is_final_sigma(text, index) ? 0x3C2 : 0x3C3);
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<int32_t>(code_point))));
  }
}

char ascii_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }
char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

size_t previous_start(std::string_view text, size_t position) {
  do {
    --position;
  } while (position > 0 && (static_cast<unsigned char>(text[position]) & 0xC0) == 0x80);
  return position;
}

}  // namespace

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_valid_utf8(std::string_view text) {
  for (size_t position = 0; position < text.size();) {
    if (static_cast<unsigned char>(text[position]) < 0x80) {
      ++position;
      continue;
    }
    const size_t length = sequence_length(text, position);
    if (length == 0) return false;
    position += length;
  }
  return true;
}

std::string to_valid_utf8(std::string_view text) {
  if (is_valid_utf8(text)) return std::string(text);
  std::string result;
  for (size_t position = 0; position < text.size();) {
    const size_t length = sequence_length(text, position);
    if (length == 0) {
      result += "\uFFFD";
      ++position;
    } else {
      result += text.substr(position, length);
      position += length;
    }
  }
  return result;
}

char32_t next_code_point(std::string_view text, size_t& position) {
  const auto byte = static_cast<unsigned char>(text[position]);
  if (byte < 0x80) {
    ++position;
    return byte;
  }
  utf8proc_int32_t code_point = -1;
  const utf8proc_ssize_t length =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + position,
                       static_cast<utf8proc_ssize_t>(text.size() - position), &code_point);
  if (length <= 0) {
    ++position;
    return 0xFFFD;
  }
  position += static_cast<size_t>(length);
  return static_cast<char32_t>(code_point);
}

void append_utf8(std::string& out, char32_t code_point) {
  utf8proc_uint8_t buffer[4];
  const utf8proc_ssize_t length =
      utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), buffer);
  out.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(length));
}

size_t code_point_count(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

size_t byte_offset(std::string_view text, size_t code_point_index) {
  size_t position = 0;
  while (position < text.size()) {
    if ((static_cast<unsigned char>(text[position]) & 0xC0) != 0x80 && code_point_index-- == 0) {
      return position;
    }
    ++position;
  }
  return text.size();
}

std::string slice_text(std::string_view text, std::optional<int64_t> start,
                       std::optional<int64_t> stop, int64_t step) {
  const auto length = static_cast<int64_t>(code_point_count(text));
  const auto clamp = [&](std::optional<int64_t> bound, int64_t fallback) {
    if (!bound) return fallback;
    int64_t value = *bound < 0 ? *bound + length : *bound;
    if (value < 0) value = step < 0 ? -1 : 0;
    return std::min(value, step < 0 ? length - 1 : length);
  };
  const int64_t first = clamp(start, step < 0 ? length - 1 : 0);
  const int64_t last = clamp(stop, step < 0 ? -1 : length);
  if (step > 0 ? first >= last : first <= last) return {};
  const bool ascii = static_cast<size_t>(length) == text.size();
  if (step == 1) {
    if (ascii) {
      return std::string(
          text.substr(static_cast<size_t>(first), static_cast<size_t>(last - first)));
    }
    const size_t begin = byte_offset(text, static_cast<size_t>(first));
    const std::string_view rest = text.substr(begin);
    return std::string(rest.substr(0, byte_offset(rest, static_cast<size_t>(last - first))));
  }
  const std::u32string code_points = decode(text);
  std::string result;
  for (int64_t i = first; step > 0 ? i < last : i > last;) {
    append_utf8(result, code_points[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return result;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_printable(char32_t c) {
  if (c == U' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_alphabetic(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return true;
    default:
      return false;
  }
}

bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

bool is_digit(char32_t c) {
  return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
         (c >= 0x2460 && c <= 0x2468) || (c >= 0x2474 && c <= 0x247C) ||
         (c >= 0x2488 && c <= 0x2490) || (c >= 0x2776 && c <= 0x277E);
}

bool is_numeric(char32_t c) {
  const utf8proc_category_t found = category(c);
  return found == UTF8PROC_CATEGORY_ND || found == UTF8PROC_CATEGORY_NL ||
         found == UTF8PROC_CATEGORY_NO;
}

bool is_cased(char32_t c) {
  const utf8proc_category_t found = category(c);
  return found == UTF8PROC_CATEGORY_LU || found == UTF8PROC_CATEGORY_LL ||
         found == UTF8PROC_CATEGORY_LT;
}

bool is_word(char32_t c) { return c == U'_' || is_alphabetic(c) || is_numeric(c); }

std::string to_upper(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  if (is_ascii(text)) {
    for (char c : text) result += ascii_upper(c);
    return result;
  }
  for (size_t position = 0; position < text.size();) {
    append_upper(result, next_code_point(text, position));
  }
  return result;
}

std::string to_lower(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  if (is_ascii(text)) {
    for (char c : text) result += ascii_lower(c);
    return result;
  }
  const std::u32string code_points = decode(text);
  for (size_t i = 0; i < code_points.size(); ++i) append_lower(result, code_points, i);
  return result;
}

std::string capitalize(std::string_view text) {
  const std::u32string code_points = decode(text);
  std::string result;
  for (size_t i = 0; i < code_points.size(); ++i) {
    if (i == 0) {
      append_title(result, code_points[i]);
    } else {
      append_lower(result, code_points, i);
    }
  }
  return result;
}

std::string title_case(std::string_view text) {
  const std::u32string code_points = decode(text);
  std::string result;
  bool in_word = false;
  for (size_t i = 0; i < code_points.size(); ++i) {
    if (in_word) {
      append_lower(result, code_points, i);
    } else {
      append_title(result, code_points[i]);
    }
    in_word = is_cased(code_points[i]);
  }
  return result;
}

std::string swap_case(std::string_view text) {
  const std::u32string code_points = decode(text);
  std::string result;
  for (size_t i = 0; i < code_points.size(); ++i) {
    const utf8proc_category_t found = category(code_points[i]);
    if (found == UTF8PROC_CATEGORY_LU) {
      append_lower(result, code_points, i);
    } else if (found == UTF8PROC_CATEGORY_LL) {
      append_upper(result, code_points[i]);
    } else {
      append_utf8(result, code_points[i]);
    }
  }
  return result;
}

std::string_view strip(std::string_view text, Side side,
                       std::optional<std::string_view> characters) {
  const std::u32string set = characters ? decode(*characters) : std::u32string();
  const auto drops = [&](char32_t code_point) {
    return characters ? set.find(code_point) != std::u32string::npos : is_space(code_point);
  };
  if (side != Side::kRight) {
    while (!text.empty()) {
      size_t position = 0;
      if (!drops(next_code_point(text, position))) break;
      text.remove_prefix(position);
    }
  }
  if (side != Side::kLeft) {
    while (!text.empty()) {
      const size_t start = previous_start(text, text.size());
      size_t position = start;
      if (!drops(next_code_point(text, position))) break;
      text = text.substr(0, start);
    }
  }
  return text;
}

namespace {

std::vector<std::string_view> split_on_space(std::string_view text, int64_t limit,
                                             bool from_right) {
  std::vector<std::string_view> parts;
  const Side near = from_right ? Side::kRight : Side::kLeft;
  text = strip(text, near);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(text);  // the far end keeps its white space
      break;
    }
    if (from_right) {
      size_t start = text.size();
      while (start > 0) {
        const size_t candidate = previous_start(text, start);
        size_t position = candidate;
        if (is_space(next_code_point(text, position))) break;
        start = candidate;
      }
      parts.push_back(text.substr(start));
      text = strip(text.substr(0, start), near);
    } else {
      size_t end = 0;
      while (end < text.size()) {
        size_t position = end;
        if (is_space(next_code_point(text, position))) break;
        end = position;
      }
      parts.push_back(text.substr(0, end));
      text = strip(text.substr(end), near);
    }
  }
  return parts;
}

}  // namespace

std::vector<std::string_view> split(std::string_view text,
                                    std::optional<std::string_view> separator, int64_t limit,
                                    bool from_right) {
  std::vector<std::string_view> parts;
  if (!separator) {
    parts = split_on_space(text, limit, from_right);
  } else {
    while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
      const size_t found = from_right ? text.rfind(*separator) : text.find(*separator);
      if (found == std::string_view::npos) break;
      if (from_right) {
        parts.push_back(text.substr(found + separator->size()));
        text = text.substr(0, found);
      } else {
        parts.push_back(text.substr(0, found));
        text.remove_prefix(found + separator->size());
      }
    }
    parts.push_back(text);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t position = 0; position < text.size();) {
    const size_t at = position;
    const char32_t code_point = next_code_point(text, position);
    if (!is_line_break(code_point)) continue;
    if (code_point == U'\r' && position < text.size() && text[position] == '\n') ++position;
    lines.push_back(text.substr(start, (keep_ends ? position : at) - start));
    start = position;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        int64_t limit) {
  std::string result;
  if (from.empty()) {
    for (size_t position = 0; limit != 0;) {
      result += to;
      if (limit > 0) --limit;
      if (position >= text.size()) return result;
      const size_t start = position;
      next_code_point(text, position);
      result += text.substr(start, position - start);
      if (limit == 0) {
        result += text.substr(position);
        return result;
      }
    }
    return std::string(text);
  }
  while (limit != 0) {
    const size_t found = text.find(from);
    if (found == std::string_view::npos) break;
    result += text.substr(0, found);
    result += to;
    text.remove_prefix(found + from.size());
    if (limit > 0) --limit;
  }
  result += text;
  return result;
}

std::string html_escape(std::string_view text) {
  std::string result;
  for (char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '\'':
        result += "&#39;";
        break;
      case '"':
        result += "&#34;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

}  // namespace braid::jinja

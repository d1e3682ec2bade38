#include "tokenizer/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "tokenizer/jinja/text.h"

namespace braid::jinja {
namespace {

std::string normalise_newlines(std::string_view source) {
  std::string result;
  result.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      result += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      result += source[i];
    }
  }
  if (!result.empty() && result.back() == '\n') result.pop_back();
  return result;
}

bool is_digit_of(char c, int base) {
  if (base == 16) return std::isxdigit(static_cast<unsigned char>(c)) != 0;
  return c >= '0' && c < '0' + base;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& origin)
      : source_(normalise_newlines(source)), origin_(origin) {}

  std::vector<Token> run() {
    while (position_ < source_.size()) lex_text();
    add(TokenType::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw Error("{}:{}: {}", origin_, line_, message);
  }

  std::string_view rest(size_t from) const { return std::string_view(source_).substr(from); }
  bool at(size_t from, std::string_view text) const { return rest(from).starts_with(text); }

  void add(TokenType type, std::string text) { tokens_.push_back({type, std::move(text), line_}); }

  // Moves to `end`, counting lines.
  void advance(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(position_),
                                         source_.begin() + static_cast<ptrdiff_t>(end), '\n'));
    if (end > position_) line_starting_ = source_[end - 1] == '\n';
    position_ = end;
  }

  size_t skip_space(size_t from) const {
    while (from < source_.size()) {
      size_t next = from;
      if (!is_space(next_code_point(source_, next))) break;
      from = next;
    }
    return from;
  }

  // Text up to the next tag, then the tag itself.
  void lex_text() {
    size_t tag = position_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos) {
        add(TokenType::kData, source_.substr(position_));
        advance(source_.size());
        return;
      }
      if (tag + 1 < source_.size() &&
          (source_[tag + 1] == '{' || source_[tag + 1] == '%' || source_[tag + 1] == '#')) {
        break;
      }
      ++tag;
    }
    const char kind = source_[tag + 1];
    size_t after = tag + 2;
    char sign = 0;
    if (after < source_.size() && (source_[after] == '-' || source_[after] == '+')) {
      sign = source_[after++];
    }
    add_data(position_, tag, sign, kind == '{');
    if (kind == '%') {
      if (const std::optional<size_t> body = raw_begin(after)) {
        advance(*body);
        lex_raw();
        return;
      }
    }
    const size_t end = after;
    advance(end);
    if (kind == '#') {
      skip_comment();
    } else {
      add(kind == '{' ? TokenType::kVariableBegin : TokenType::kBlockBegin, "");
      lex_expression(kind == '{');
    }
  }

  // Data before a tag: "-" strips all white space, lstrip_blocks that of a line holding nothing
  // else.
  void add_data(size_t begin, size_t end, char sign, bool variable) {
    std::string_view text = rest(begin).substr(0, end - begin);
    if (sign == '-') {
      text = strip(text, Side::kRight);
    } else if (sign != '+' && !variable) {
      const size_t newline = text.rfind('\n');
      const size_t start = newline == std::string_view::npos ? 0 : newline + 1;
      if ((start > 0 || line_starting_) && strip(text.substr(start), Side::kBoth).empty()) {
        text = text.substr(0, start);
      }
    }
    if (!text.empty()) add(TokenType::kData, std::string(text));
    advance(end);
  }

  // End of a "raw" tag whose name starts at or after `from`.
  std::optional<size_t> raw_begin(size_t from) const {
    size_t at_name = skip_space(from);
    if (!at(at_name, "raw")) return std::nullopt;
    size_t end = skip_space(at_name + 3);
    if (at(end, "-%}")) return skip_space(end + 3);
    if (at(end, "%}")) return end + 2;
    return std::nullopt;
  }

  // A closing delimiter at `from` ("-%}", "+%}", "%}"), with the white space that it eats.
  std::optional<size_t> close(size_t from, std::string_view delimiter) const {
    if (at(from, "-") && at(from + 1, delimiter)) return skip_space(from + 1 + delimiter.size());
    const bool variable = delimiter == "}}";
    if (!variable && at(from, "+") && at(from + 1, delimiter)) return from + 1 + delimiter.size();
    if (!at(from, delimiter)) return std::nullopt;
    const size_t end = from + delimiter.size();
    return !variable && at(end, "\n") ? end + 1 : end;
  }

  void lex_raw() {
    for (size_t tag = position_;; ++tag) {
      tag = source_.find("{%", tag);
      if (tag == std::string::npos) fail("missing end of raw block");
      size_t after = tag + 2;
      char sign = 0;
      if (after < source_.size() && (source_[after] == '-' || source_[after] == '+')) {
        sign = source_[after++];
      }
      size_t name = skip_space(after);
      if (!at(name, "endraw")) continue;
      const std::optional<size_t> end = close(skip_space(name + 6), "%}");
      if (!end) continue;
      add_data(position_, tag, sign, false);
      advance(*end);
      return;
    }
  }

  void skip_comment() {
    for (size_t i = position_; i < source_.size(); ++i) {
      if (source_[i] != '#' && source_[i] != '-' && source_[i] != '+') continue;
      if (const std::optional<size_t> end = close(i, "#}")) {
        advance(*end);
        return;
      }
    }
    fail("missing end of comment");
  }

  void lex_expression(bool variable) {
    const std::string_view delimiter = variable ? "}}" : "%}";
    std::string open;  // brackets waiting for their partner
    while (true) {
      advance(skip_space(position_));
      if (position_ >= source_.size()) fail("the template ends inside a tag");
      if (open.empty()) {
        if (const std::optional<size_t> end = close(position_, delimiter)) {
          add(variable ? TokenType::kVariableEnd : TokenType::kBlockEnd, "");
          advance(*end);
          return;
        }
      }
      lex_token(open);
    }
  }

  void lex_token(std::string& open) {
    const char c = source_[position_];
    if (c == '"' || c == '\'') return lex_string(c);
    if (c >= '0' && c <= '9') return lex_number();
    size_t end = position_;
    while (end < source_.size()) {
      size_t next = end;
      if (!is_word(next_code_point(source_, next))) break;
      end = next;
    }
    if (end > position_) {
      add(TokenType::kName, source_.substr(position_, end - position_));
      advance(end);
      return;
    }
    lex_operator(open);
  }

  void lex_operator(std::string& open) {
    static constexpr std::array<std::string_view, 6> kPairs = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kSingles = "+-/*%~[](){}><=.:|,;";
    for (std::string_view pair : kPairs) {
      if (at(position_, pair)) {
        add(TokenType::kOperator, std::string(pair));
        advance(position_ + 2);
        return;
      }
    }
    const char c = source_[position_];
    if (kSingles.find(c) == std::string_view::npos) {
      size_t next = position_;
      next_code_point(source_, next);
      fail(fmt::format("unexpected character '{}'", source_.substr(position_, next - position_)));
    }
    if (c == '(') open += ')';
    if (c == '[') open += ']';
    if (c == '{') open += '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fail(fmt::format("unexpected '{}'", c));
      if (open.back() != c) fail(fmt::format("unexpected '{}', expected '{}'", c, open.back()));
      open.pop_back();
    }
    add(TokenType::kOperator, std::string(1, c));
    advance(position_ + 1);
  }

  // End of digits with single underscores between them, or `from` when there are none.
  size_t digits(size_t from, int base) const {
    size_t end = from;
    while (end < source_.size()) {
      if (is_digit_of(source_[end], base)) {
        ++end;
      } else if (source_[end] == '_' && end > from && end + 1 < source_.size() &&
                 is_digit_of(source_[end + 1], base)) {
        end += 2;
      } else {
        break;
      }
    }
    return end;
  }

  void lex_number() {
    const bool after_dot = position_ > 0 && source_[position_ - 1] == '.';
    size_t end = digits(position_, 10);
    size_t float_end = position_;
    if (!after_dot) {
      size_t fraction = end;
      if (at(end, ".")) {
        const size_t stop = digits(end + 1, 10);
        if (stop > end + 1) fraction = float_end = stop;
      }
      if (fraction < source_.size() && (source_[fraction] == 'e' || source_[fraction] == 'E')) {
        size_t exponent = fraction + 1;
        if (at(exponent, "+") || at(exponent, "-")) ++exponent;
        const size_t stop = digits(exponent, 10);
        if (stop > exponent) float_end = stop;
      }
    }
    TokenType type = TokenType::kInteger;
    if (float_end > position_) {
      type = TokenType::kFloat;
      end = float_end;
    } else if (source_[position_] == '0') {
      end = position_ + 1;
      const char mark = end < source_.size() ? static_cast<char>(source_[end] | 0x20) : '\0';
      const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
      if (base != 0) {
        size_t start = end + 1;
        if (at(start, "_")) ++start;
        const size_t stop = digits(start, base);
        if (stop > start) end = stop;
      } else {
        while (at(end, "0") || at(end, "_0")) end += at(end, "0") ? 1 : 2;
      }
    }
    std::string text = source_.substr(position_, end - position_);
    std::erase(text, '_');
    add(type, std::move(text));
    advance(end);
  }

  void lex_string(char quote) {
    size_t end = position_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("a string has no end");
    std::string text = unescape(rest(position_ + 1).substr(0, end - position_ - 1));
    add(TokenType::kString, std::move(text));
    advance(end + 1);
  }

  char32_t hex_escape(std::string_view text, size_t& i, size_t length) const {
    char32_t value = 0;
    for (size_t k = 0; k < length; ++k, ++i) {
      if (i >= text.size() || !is_digit_of(text[i], 16))
        fail("a \\x, \\u or \\U escape is cut short");
      const char digit = static_cast<char>(text[i] | 0x20);
      value = value * 16 + static_cast<char32_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      fail("unsupported escape in a string: it names no character");
    }
    return value;
  }

  std::string unescape(std::string_view text) const {
    std::string out;
    for (size_t i = 0; i < text.size();) {
      if (text[i] != '\\') {
        out += text[i++];
        continue;
      }
      const char c = text[i + 1];
      i += 2;
      switch (c) {
        case '\n':
          break;
        case '\\':
          out += '\\';
          break;
        case '\'':
          out += '\'';
          break;
        case '"':
          out += '"';
          break;
        case 'a':
          out += '\a';
          break;
        case 'b':
          out += '\b';
          break;
        case 'f':
          out += '\f';
          break;
        case 'n':
          out += '\n';
          break;
        case 'r':
          out += '\r';
          break;
        case 't':
          out += '\t';
          break;
        case 'v':
          out += '\v';
          break;
        case 'x':
          append_utf8(out, hex_escape(text, i, 2));
          break;
        case 'u':
          append_utf8(out, hex_escape(text, i, 4));
          break;
        case 'U':
          append_utf8(out, hex_escape(text, i, 8));
          break;
        case 'N':
          fail("unsupported escape \\N in a string");
        default:
          if (is_digit_of(c, 8)) {
            char32_t value = static_cast<char32_t>(c - '0');
            for (int k = 0; k < 2 && i < text.size() && is_digit_of(text[i], 8); ++k) {
              value = value * 8 + static_cast<char32_t>(text[i++] - '0');
            }
            append_utf8(out, value);
          } else {
            out += '\\';
            out += c;
          }
      }
    }
    return out;
  }

  const std::string source_;
  const std::string& origin_;
  size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last token ended a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize_template(std::string_view source, const std::string& origin) {
  if (!is_valid_utf8(source)) throw Error("{}: the template is not valid UTF-8", origin);
  return Lexer(source, origin).run();
}

}  // namespace braid::jinja

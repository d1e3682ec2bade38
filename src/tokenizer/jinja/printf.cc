#include "tokenizer/jinja/printf.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "tokenizer/jinja/repr.h"
#include "tokenizer/jinja/text.h"

namespace braid::jinja {
namespace {

constexpr int64_t kMaxWidth = 10000;

struct Conversion {
  std::string name;
  bool has_name = false;
  bool left = false, zero = false, sign = false, space = false, alternate = false;
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

class PercentFormatter {
 public:
  PercentFormatter(const Value& format, const Value& arguments, Runtime& runtime)
      : text_(format.as_string()),
        markup_(format.is_markup()),
        arguments_(arguments),
        runtime_(runtime) {}

  std::string run() {
    std::string out;
    bool by_name = false;
    while (position_ < text_.size()) {
      const char c = text_[position_++];
      if (c != '%') {
        out += c;
        continue;
      }
      const Conversion conversion = parse();
      if (conversion.type == '%') {
        out += '%';
        continue;
      }
      by_name = by_name || conversion.has_name;
      const std::string piece = convert(conversion, argument(conversion));
      runtime_.budget.charge(piece.size());
      out += piece;
    }
    const bool single = !arguments_.is(Kind::kTuple);
    const bool unused = single ? taken_ == 0 && !arguments_.is_dict() && !arguments_.is(Kind::kList)
                               : taken_ < arguments_.as_items().size();
    if (unused && !by_name) throw Failure("not all arguments converted during string formatting");
    return out;
  }

 private:
  char take() {
    if (position_ >= text_.size()) throw Failure("incomplete format");
    return text_[position_++];
  }

  int64_t number(char& c) {
    if (c == '*') throw Failure("unsupported '*' in a % format");
    int64_t value = 0;
    while (c >= '0' && c <= '9') {
      value = value * 10 + (c - '0');
      if (value > kMaxWidth) throw Failure("a width in a % format is beyond {}", kMaxWidth);
      c = take();
    }
    return value;
  }

  Conversion parse() {
    Conversion conversion;
    char c = take();
    if (c == '(') {
      const size_t end = text_.find(')', position_);
      if (end == std::string::npos) throw Failure("incomplete format key");
      conversion.name = text_.substr(position_, end - position_);
      conversion.has_name = true;
      position_ = end + 1;
      c = take();
    }
    for (;; c = take()) {
      if (c == '-')
        conversion.left = true;
      else if (c == '0')
        conversion.zero = true;
      else if (c == '+')
        conversion.sign = true;
      else if (c == ' ')
        conversion.space = true;
      else if (c == '#')
        conversion.alternate = true;
      else
        break;
    }
    conversion.width = number(c);
    if (c == '.') {
      c = take();
      conversion.precision = number(c);
    }
    conversion.type = c;
    return conversion;
  }

  Value argument(const Conversion& conversion) {
    if (conversion.has_name) {
      if (!arguments_.is_dict()) throw Failure("format requires a mapping");
      const Value* found = arguments_.as_dict().find(conversion.name);
      if (found == nullptr) throw Failure("the mapping has no key '{}'", conversion.name);
      return *found;
    }
    const size_t index = taken_++;
    if (arguments_.is(Kind::kTuple)) {
      if (index < arguments_.as_items().size()) return arguments_.as_items()[index];
    } else if (index == 0) {
      return arguments_;
    }
    throw Failure("not enough arguments for format string");
  }

  static int64_t integer(const Conversion& conversion, const Value& value) {
    if (value.is(Kind::kFloat) && (conversion.type == 'd' || conversion.type == 'i')) {
      const double number = value.as_double();
      if (std::isfinite(number) && std::abs(number) < 9.2e18) return static_cast<int64_t>(number);
    }
    if (!value.is_integral()) {
      throw Failure("%{} format: a number is required, not {}", conversion.type, type_name(value));
    }
    return value.as_integer();
  }

  // Digits and sign separately, so that zeros can go between them.
  std::string convert(const Conversion& conversion, const Value& value) {
    std::string sign;
    std::string body;
    bool numeric = true;
    switch (conversion.type) {
      case 's':
      case 'r':
      case 'a':
        body = conversion.type == 's' ? runtime_.text(value) : to_repr(value, runtime_.budget);
        if (markup_ && !value.is_markup()) body = html_escape(body);
        if (conversion.precision >= 0) {
          body.resize(byte_offset(body, static_cast<size_t>(conversion.precision)));
        }
        numeric = false;
        break;
      case 'c':
        if (value.is_integral()) {
          if (value.as_integer() < 0 || value.as_integer() > 0x10FFFF ||
              (value.as_integer() >= 0xD800 && value.as_integer() < 0xE000)) {
            throw Failure("%c argument is no character");
          }
          append_utf8(body, static_cast<char32_t>(value.as_integer()));
        } else if (value.is_string() && code_point_count(value.as_string()) == 1) {
          body = value.as_string();
        } else {
          throw Failure("%c requires int or char");
        }
        numeric = false;
        break;
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': {
        if (value.is(Kind::kBigInt) && conversion.type != 'x' && conversion.type != 'X' &&
            conversion.type != 'o') {
          body = value.as_string();
          if (body.starts_with('-')) {
            sign = "-";
            body.erase(0, 1);
          }
          break;
        }
        const int64_t number = integer(conversion, value);
        const uint64_t magnitude = number < 0 ? uint64_t{0} - static_cast<uint64_t>(number)
                                              : static_cast<uint64_t>(number);
        if (number < 0) sign = "-";
        if (conversion.type == 'x')
          body = fmt::format("{:x}", magnitude);
        else if (conversion.type == 'X')
          body = fmt::format("{:X}", magnitude);
        else if (conversion.type == 'o')
          body = fmt::format("{:o}", magnitude);
        else
          body = fmt::format("{}", magnitude);
        if (static_cast<int64_t>(body.size()) < conversion.precision) {
          body.insert(0, static_cast<size_t>(conversion.precision) - body.size(), '0');
        }
        if (conversion.alternate && conversion.type != 'd' && conversion.type != 'i') {
          sign += fmt::format("0{}", conversion.type);
        }
        break;
      }
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        if (!value.is_number()) {
          throw Failure("%{} format: must be real number, not {}", conversion.type,
                        type_name(value));
        }
        const double number = value.as_double();
        if (std::signbit(number) && !std::isnan(number)) sign = "-";
        const char pattern[] = {'%',
                                conversion.alternate ? '#' : '.',
                                conversion.alternate ? '.' : '*',
                                conversion.alternate ? '*' : conversion.type,
                                conversion.alternate ? conversion.type : '\0',
                                '\0'};
        const int precision = conversion.precision < 0 ? 6 : static_cast<int>(conversion.precision);
        const int size = std::snprintf(nullptr, 0, pattern, precision, std::abs(number));
        body.resize(static_cast<size_t>(size) + 1);
        std::snprintf(body.data(), body.size(), pattern, precision, std::abs(number));
        body.pop_back();
        break;
      }
      default:
        throw Failure("unsupported format character '{}'", conversion.type);
    }
    if (numeric && !sign.starts_with('-')) {
      if (conversion.sign)
        sign.insert(0, "+");
      else if (conversion.space)
        sign.insert(0, " ");
    }
    return pad(conversion, sign, std::move(body), numeric);
  }

  static std::string pad(const Conversion& conversion, const std::string& sign, std::string body,
                         bool numeric) {
    const auto size = static_cast<int64_t>(code_point_count(body) + sign.size());
    const auto missing = static_cast<size_t>(std::max<int64_t>(conversion.width - size, 0));
    if (conversion.left) return sign + body + std::string(missing, ' ');
    if (conversion.zero && numeric) return sign + std::string(missing, '0') + body;
    return std::string(missing, ' ') + sign + body;
  }

  const std::string& text_;
  const bool markup_;
  const Value& arguments_;
  Runtime& runtime_;
  size_t position_ = 0;
  size_t taken_ = 0;
};

}  // namespace

std::string format_percent(const Value& format, const Value& arguments, Runtime& runtime) {
  runtime.budget.charge(format.as_string().size());
  return PercentFormatter(format, arguments, runtime).run();
}

std::string format_braces(const std::string& format, const Arguments& arguments, Runtime& runtime) {
  std::string out;
  size_t automatic = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if (c != '{' && c != '}') {
      out += c;
      continue;
    }
    if (i + 1 < format.size() && format[i + 1] == c) {
      out += c;
      ++i;
      continue;
    }
    const size_t end = c == '{' ? format.find('}', i) : std::string::npos;
    if (end == std::string::npos) throw Failure("single '{}' in a format string", c);
    std::string field = format.substr(i + 1, end - i - 1);
    i = end;
    bool repr = false;
    if (field.ends_with("!r") || field.ends_with("!s")) {
      repr = field.back() == 'r';
      field.resize(field.size() - 2);
    }
    if (field.find_first_of(":.[!{") != std::string::npos) {
      throw Failure("unsupported format field '{{{}}}'", field);
    }
    const Value* value = nullptr;
    size_t index = 0;
    const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), index);
    if (field.empty() || (error == std::errc() && stop == field.data() + field.size())) {
      if (field.empty()) index = automatic++;
      if (index < arguments.positional.size()) value = &arguments.positional[index];
    } else {
      for (const auto& keyword : arguments.keyword) {
        if (keyword.first == field) value = &keyword.second;
      }
    }
    if (value == nullptr) throw Failure("no argument for the format field '{{{}}}'", field);
    const std::string piece = repr ? to_repr(*value, runtime.budget) : runtime.text(*value);
    runtime.budget.charge(piece.size());
    out += piece;
  }
  return out;
}

}  // namespace braid::jinja

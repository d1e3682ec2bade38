#include "tokenizer/jinja/repr.h"

#include <charconv>
#include <cmath>

#include "tokenizer/jinja/text.h"

namespace braid::jinja {
namespace {

std::string string_repr(std::string_view text) {
  const bool double_quoted =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quoted ? '"' : '\'';
  std::string out(1, quote);
  for (size_t position = 0; position < text.size();) {
    const char32_t c = next_code_point(text, position);
    if (c == static_cast<char32_t>(quote) || c == U'\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == U'\n') {
      out += "\\n";
    } else if (c == U'\r') {
      out += "\\r";
    } else if (c == U'\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      append_utf8(out, c);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  out += quote;
  return out;
}

void append_repr(std::string& out, const Value& value, Budget& budget);

void append_items(std::string& out, const ValueList& items, Budget& budget) {
  bool first = true;
  for (const Value& item : items) {
    if (!first) out += ", ";
    first = false;
    append_repr(out, item, budget);
  }
}

void append_dict(std::string& out, const Dict& dict, Budget& budget) {
  out += '{';
  bool first = true;
  for (const auto& [key, item] : dict.entries()) {
    if (!first) out += ", ";
    first = false;
    append_repr(out, key, budget);
    out += ": ";
    append_repr(out, item, budget);
  }
  out += '}';
}

void append_repr(std::string& out, const Value& value, Budget& budget) {
  const Budget::Level level(budget);
  budget.charge(16);
  switch (value.kind()) {
    case Kind::kUndefined:
      out += "Undefined";
      return;
    case Kind::kNone:
      out += "None";
      return;
    case Kind::kBool:
      out += value.as_bool() ? "True" : "False";
      return;
    case Kind::kInt:
      out += fmt::format("{}", value.as_integer());
      return;
    case Kind::kBigInt:
      out += value.as_string();
      return;
    case Kind::kFloat:
      out += float_text(value.as_double());
      return;
    case Kind::kString:
      budget.charge(value.as_string().size());
      if (value.is_markup()) {
        out += fmt::format("Markup({})", string_repr(value.as_string()));
      } else {
        out += string_repr(value.as_string());
      }
      return;
    case Kind::kList:
      out += '[';
      append_items(out, value.as_items(), budget);
      out += ']';
      return;
    case Kind::kTuple:
      out += '(';
      append_items(out, value.as_items(), budget);
      out += value.as_items().size() == 1 ? ",)" : ")";
      return;
    case Kind::kDict:
      append_dict(out, value.as_dict(), budget);
      return;
    case Kind::kView:
      out += value.object_as<ViewObject>().name;
      out += "([";
      append_items(out, value.as_items(), budget);
      out += "])";
      return;
    case Kind::kRange: {
      const auto& range = value.object_as<RangeObject>();
      out += fmt::format("range({}, {}", range.start, range.stop);
      if (range.step != 1) out += fmt::format(", {}", range.step);
      out += ')';
      return;
    }
    case Kind::kNamespace:
      out += "<Namespace ";
      append_dict(out, value.as_namespace().attributes, budget);
      out += '>';
      return;
    default:
      throw Failure("a {} cannot be printed (its text would be a memory address)",
                    type_name(value));
  }
}

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto scientific =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(scientific.ptr - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(),
                  exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  char plain[64];
  const auto fixed = std::to_chars(plain, plain + sizeof plain, value, std::chars_format::fixed);
  std::string result(plain, fixed.ptr);
  if (result.find('.') == std::string::npos) result += ".0";
  return result;
}

std::string to_repr(const Value& value, Budget& budget) {
  std::string out;
  append_repr(out, value, budget);
  return out;
}

std::string to_text(const Value& value, Budget& budget) {
  if (value.is_string()) {
    budget.charge(value.as_string().size());
    return value.as_string();
  }
  if (value.is_undefined()) return {};
  return to_repr(value, budget);
}

}  // namespace braid::jinja

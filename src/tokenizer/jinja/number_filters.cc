#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/text.h"

namespace braid::jinja {
namespace {

// Removes single underscores between digits; nothing if one stands elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      result += text[i];
      continue;
    }
    const auto alphanumeric = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0;
    };
    if (i == 0 || i + 1 == text.size() || !alphanumeric(text[i - 1]) ||
        !alphanumeric(text[i + 1])) {
      return std::nullopt;
    }
  }
  return result;
}

// Python's int(text, base); nothing where it raises ValueError.
std::optional<Value> parse_integer(std::string_view source, int64_t base) {
  const std::optional<std::string> cleaned = without_underscores(strip(source, Side::kBoth));
  if (!cleaned) return std::nullopt;
  std::string_view text = *cleaned;
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0') {
    const char mark = static_cast<char>(text[1] | 0x20);
    const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      base = marked;
      text.remove_prefix(2);
    }
  }
  if (base == 0) {
    if (text.size() > 1 && text[0] == '0' &&
        text.find_first_not_of('0') != std::string_view::npos) {
      return std::nullopt;
    }
    base = 10;
  }
  if (base < 2 || base > 36) return std::nullopt;
  if (text.empty() || text[0] == '-' || text[0] == '+') return std::nullopt;
  const std::string digits = (negative ? "-" : "") + std::string(text);
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, static_cast<int>(base));
  if (end != digits.data() + digits.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) throw Failure("unsupported integer beyond 64 bits");
  return Value::integer(value);
}

// Python's float(text); nothing where it raises ValueError.
std::optional<double> parse_float(std::string_view source) {
  const std::optional<std::string> cleaned = without_underscores(strip(source, Side::kBoth));
  if (!cleaned) return std::nullopt;
  const std::string lowered = to_lower(*cleaned);
  std::string_view text = lowered;
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  if (text == "inf" || text == "infinity") {
    value = std::numeric_limits<double>::infinity();
  } else if (text == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    if (text.empty() || (text[0] != '.' && (text[0] < '0' || text[0] > '9'))) return std::nullopt;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (end != text.data() + text.size()) return std::nullopt;
    if (error == std::errc::result_out_of_range)
      value = std::strtod(std::string(text).c_str(), nullptr);
    else if (error != std::errc())
      return std::nullopt;
  }
  return negative ? -value : value;
}

// int(float); nothing where Python raises ValueError or OverflowError.
std::optional<Value> truncate(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  const double whole = std::trunc(value);
  if (std::abs(whole) >= 9.2233720368547758e18) throw Failure("unsupported integer beyond 64 bits");
  return Value::integer(static_cast<int64_t>(whole));
}

Value int_filter(Runtime&, const Value& input, Arguments arguments) {
  const Bound bound = bind("int", std::move(arguments), {"default", "base"}, 0);
  const Value fallback = bound.has(0) ? bound[0] : Value::integer(0);
  if (input.is_undefined()) throw Failure(input.as_string());
  if (input.is(Kind::kBigInt)) return input;
  if (input.is_integral()) return Value::integer(input.as_integer());
  if (input.is(Kind::kFloat)) {
    if (std::isinf(input.as_double())) throw Failure("cannot convert float infinity to integer");
    return truncate(input.as_double()).value_or(fallback);
  }
  if (!input.is_string()) return fallback;
  if (const auto value = parse_integer(input.as_string(), bound.integer(1, 10))) return *value;
  if (const auto value = parse_float(input.as_string())) return truncate(*value).value_or(fallback);
  return fallback;
}

Value float_filter(Runtime&, const Value& input, Arguments arguments) {
  const Bound bound = bind("float", std::move(arguments), {"default"}, 0);
  if (input.is_undefined()) throw Failure(input.as_string());
  if (input.is_number()) return Value::floating(input.as_double());
  if (input.is(Kind::kBigInt) || input.is_string()) {
    if (const auto value = parse_float(input.as_string())) return Value::floating(*value);
  }
  return bound.has(0) ? bound[0] : Value::floating(0.0);
}

Value abs_filter(Runtime&, const Value& input, Arguments arguments) {
  bind("abs", std::move(arguments), {}, 0);
  if (input.is_undefined()) throw Failure(input.as_string());
  if (input.is_integral()) {
    if (input.as_integer() == std::numeric_limits<int64_t>::min()) {
      throw Failure("unsupported integer beyond 64 bits");
    }
    return Value::integer(std::abs(input.as_integer()));
  }
  if (input.is(Kind::kFloat)) return Value::floating(std::abs(input.as_double()));
  throw Failure("bad operand type for abs(): '{}'", type_name(input));
}

// Python's round(): exact decimal rounding, ties to even.
double round_to(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 22) return value;
  if (digits < -308) return std::copysign(0.0, value);
  if (digits >= 0) {
    // printf rounds the exact value of the double, as Python does.
    return std::strtod(fmt::format("{:.{}f}", value, static_cast<int>(digits)).c_str(), nullptr);
  }
  const double scale = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / scale) * scale;
}

Value round_filter(Runtime&, const Value& input, Arguments arguments) {
  const Bound bound = bind("round", std::move(arguments), {"precision", "method"}, 0);
  const int64_t precision = bound.integer(0, 0);
  const std::string method = bound.text(1, "common");
  if (method != "common" && method != "ceil" && method != "floor") {
    throw Failure("method must be common, ceil or floor");
  }
  if (input.is_undefined()) throw Failure(input.as_string());
  if (!input.is_number()) throw Failure("type {} doesn't define round", type_name(input));
  if (method == "common") {
    if (!input.is_integral()) return Value::floating(round_to(input.as_double(), precision));
    if (precision >= 0) return Value::integer(input.as_integer());
    if (precision < -18) return Value::integer(0);
    int64_t scale = 1;
    for (int64_t i = 0; i > precision; --i) scale *= 10;
    const int64_t value = input.as_integer();
    int64_t quotient = value / scale;
    const int64_t rest = std::abs(value % scale);
    if (rest * 2 > scale || (rest * 2 == scale && quotient % 2 != 0))
      quotient += value < 0 ? -1 : 1;
    int64_t result = 0;
    if (__builtin_mul_overflow(quotient, scale, &result)) {
      throw Failure("unsupported integer beyond 64 bits");
    }
    return Value::integer(result);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = input.as_double() * scale;
  return Value::floating((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

constexpr Filter kFilters[] = {
    {"int", int_filter}, {"float", float_filter}, {"abs", abs_filter}, {"round", round_filter}};

}  // namespace

std::span<const Filter> number_filters() { return kFilters; }

}  // namespace braid::jinja

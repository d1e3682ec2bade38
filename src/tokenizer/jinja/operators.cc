#include "tokenizer/jinja/operators.h"

#include <cmath>
#include <limits>

#include "tokenizer/jinja/printf.h"
#include "tokenizer/jinja/text.h"

namespace braid::jinja {
namespace {

const char* symbol_of(Operator op) {
  switch (op) {
    case Operator::kAdd:
    case Operator::kPlus:
      return "+";
    case Operator::kSubtract:
    case Operator::kNegate:
      return "-";
    case Operator::kMultiply:
      return "*";
    case Operator::kDivide:
      return "/";
    case Operator::kFloorDivide:
      return "//";
    case Operator::kModulo:
      return "%";
    case Operator::kPower:
      return "**";
    case Operator::kLess:
      return "<";
    case Operator::kLessEqual:
      return "<=";
    case Operator::kGreater:
      return ">";
    case Operator::kGreaterEqual:
      return ">=";
    default:
      return "?";
  }
}

[[noreturn]] void unsupported(Operator op, const Value& left, const Value& right) {
  for (const Value* side : {&left, &right}) {
    if (side->is_undefined()) throw Failure(side->as_string());
  }
  throw Failure("unsupported operand types for {}: '{}' and '{}'", symbol_of(op), type_name(left),
                type_name(right));
}

[[noreturn]] void overflow() { throw Failure("unsupported integer beyond 64 bits"); }

int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) throw Failure("integer division or modulo by zero");
  if (a == std::numeric_limits<int64_t>::min() && b == -1) overflow();
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t modulo(int64_t a, int64_t b) {
  if (b == 0) throw Failure("integer division or modulo by zero");
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) overflow();
  }
  return result;
}

Value integer_arithmetic(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool too_large = false;
  switch (op) {
    case Operator::kAdd:
      too_large = __builtin_add_overflow(a, b, &result);
      break;
    case Operator::kSubtract:
      too_large = __builtin_sub_overflow(a, b, &result);
      break;
    case Operator::kMultiply:
      too_large = __builtin_mul_overflow(a, b, &result);
      break;
    case Operator::kFloorDivide:
      result = floor_divide(a, b);
      break;
    case Operator::kModulo:
      result = modulo(a, b);
      break;
    case Operator::kPower:
      if (b < 0) {
        if (a == 0) throw Failure("0.0 cannot be raised to a negative power");
        return Value::floating(std::pow(static_cast<double>(a), static_cast<double>(b)));
      }
      result = power(a, b);
      break;
    default:
      break;
  }
  if (too_large) overflow();
  return Value::integer(result);
}

double float_modulo(double a, double b) {
  if (b == 0) throw Failure("float modulo by zero");
  double rest = std::fmod(a, b);
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) rest += b;
  } else {
    rest = std::copysign(0.0, b);
  }
  return rest;
}

Value float_arithmetic(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value::floating(a + b);
    case Operator::kSubtract:
      return Value::floating(a - b);
    case Operator::kMultiply:
      return Value::floating(a * b);
    case Operator::kDivide:
      if (b == 0) throw Failure("division by zero");
      return Value::floating(a / b);
    case Operator::kModulo:
      return Value::floating(float_modulo(a, b));
    case Operator::kFloorDivide: {
      const double rest = float_modulo(a, b);
      const double quotient = (a - rest) / b;
      return Value::floating(quotient == 0 ? std::copysign(0.0, a / b) : std::round(quotient));
    }
    default: {
      if (a == 0 && b < 0) throw Failure("0.0 cannot be raised to a negative power");
      const double result = std::pow(a, b);
      if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) {
        throw Failure("unsupported complex result of **");
      }
      if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) {
        throw Failure("numerical result of ** out of range");
      }
      return Value::floating(result);
    }
  }
}

Value repeat(const Value& sequence, int64_t count, Runtime& runtime) {
  const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
  if (sequence.is_string()) {
    const std::string& text = sequence.as_string();
    const size_t limit = runtime.budget.limits().work;
    if (!text.empty() && times > limit / text.size()) runtime.budget.charge(limit + 1);
    runtime.budget.charge(times * text.size());
    std::string result;
    result.reserve(times * text.size());
    for (size_t i = 0; i < times && !text.empty(); ++i) result += text;
    return Value::string_like(sequence, std::move(result));
  }
  const ValueList& items = sequence.as_items();
  const size_t limit = runtime.budget.limits().work;
  if (!items.empty() && times > limit / items.size()) runtime.budget.charge(limit + 1);
  runtime.budget.charge_values(times * items.size());
  ValueList result;
  for (size_t i = 0; i < times && !items.empty(); ++i) {
    result.insert(result.end(), items.begin(), items.end());
  }
  return sequence.is(Kind::kTuple) ? Value::tuple(std::move(result))
                                   : Value::list(std::move(result));
}

Value add_strings(const Value& left, const Value& right, Runtime& runtime) {
  if (left.is_markup() == right.is_markup()) {
    runtime.budget.charge(left.as_string().size() + right.as_string().size() + 32);
    return Value::string_like(left, left.as_string() + right.as_string());
  }
  std::string result = left.is_markup() ? left.as_string() + html_escape(right.as_string())
                                        : html_escape(left.as_string()) + right.as_string();
  runtime.budget.charge(result.size() + 32);
  return Value::markup(std::move(result));
}

bool is_list_or_tuple(const Value& value) {
  return value.is(Kind::kList) || value.is(Kind::kTuple);
}

long double exact(const Value& number) {
  return number.is(Kind::kFloat) ? static_cast<long double>(number.as_double())
                                 : static_cast<long double>(number.as_integer());
}

// Items of a set-like view or list that are compared in order.
bool equal_items(const ValueList& left, const ValueList& right, Budget& budget) {
  if (left.size() != right.size()) return false;
  for (size_t i = 0; i < left.size(); ++i) {
    if (!equal(left[i], right[i], budget)) return false;
  }
  return true;
}

}  // namespace

void charge_search(Budget& budget, std::string_view text, std::string_view needle) {
  const size_t factor = needle.size() / 256 + 1;
  if (text.size() > budget.limits().work / factor) budget.charge(budget.limits().work + 1);
  budget.charge(text.size() * factor / 4 + 1);
}

bool equal(const Value& left, const Value& right, Budget& budget) {
  budget.charge(1);
  if (left.is_number() && right.is_number()) return exact(left) == exact(right);
  if (left.kind() != right.kind()) return false;
  const Budget::Level level(budget);
  switch (left.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
    case Kind::kBigInt:
      budget.charge(std::min(left.as_string().size(), right.as_string().size()) / 16);
      return left.as_string() == right.as_string();
    case Kind::kList:
    case Kind::kTuple:
      return equal_items(left.as_items(), right.as_items(), budget);
    case Kind::kDict: {
      const Dict& a = left.as_dict();
      const Dict& b = right.as_dict();
      if (a.size() != b.size()) return false;
      for (const auto& [key, value] : a.entries()) {
        const Value* other = b.find(key);
        if (other == nullptr || !equal(value, *other, budget)) return false;
      }
      return true;
    }
    case Kind::kRange: {
      const auto& a = left.object_as<RangeObject>();
      const auto& b = right.object_as<RangeObject>();
      const int64_t size = a.size();
      return size == b.size() &&
             (size == 0 || (a.start == b.start && (size == 1 || a.step == b.step)));
    }
    default:
      return left.same_as(right);
  }
}

bool less(const Value& left, const Value& right, Budget& budget) {
  budget.charge(1);
  if (left.is_number() && right.is_number()) return exact(left) < exact(right);
  if (left.is_string() && right.is_string()) {
    budget.charge(std::min(left.as_string().size(), right.as_string().size()) / 16);
    return left.as_string() < right.as_string();
  }
  if (left.kind() == right.kind() && is_list_or_tuple(left)) {
    const Budget::Level level(budget);
    const ValueList& a = left.as_items();
    const ValueList& b = right.as_items();
    for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
      if (!equal(a[i], b[i], budget)) return less(a[i], b[i], budget);
    }
    return a.size() < b.size();
  }
  unsupported(Operator::kLess, left, right);
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is_string()) {
        throw Failure("'in <string>' requires string as left operand, not {}", type_name(item));
      }
      charge_search(budget, container.as_string(), item.as_string());
      return container.as_string().find(item.as_string()) != std::string::npos;
    case Kind::kDict:
      return container.as_dict().find(item) != nullptr;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      for (const Value& candidate : container.as_items()) {
        if (equal(candidate, item, budget)) return true;
      }
      return false;
    default:
      for (const Value& candidate : iterate(container)) {
        if (equal(candidate, item, budget)) return true;
      }
      return false;
  }
}

Value apply_binary(Operator op, const Value& left, const Value& right, Runtime& runtime) {
  if (left.is_string() && op == Operator::kModulo) {
    return Value::string_like(left, format_percent(left, right, runtime));
  }
  if (left.is_integral() && right.is_integral() && op != Operator::kDivide) {
    return integer_arithmetic(op, left.as_integer(), right.as_integer());
  }
  if (left.is_number() && right.is_number()) {
    return float_arithmetic(op, left.as_double(), right.as_double());
  }
  if (op == Operator::kAdd) {
    if (left.is_string() && right.is_string()) return add_strings(left, right, runtime);
    if (left.kind() == right.kind() && is_list_or_tuple(left)) {
      ValueList items = left.as_items();
      items.insert(items.end(), right.as_items().begin(), right.as_items().end());
      runtime.budget.charge_values(items.size());
      return left.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
    }
  }
  if (op == Operator::kMultiply) {
    const auto repeats = [](const Value& value) {
      return value.is_string() || is_list_or_tuple(value);
    };
    if (repeats(left) && right.is_integral()) return repeat(left, right.as_integer(), runtime);
    if (left.is_integral() && repeats(right)) return repeat(right, left.as_integer(), runtime);
  }
  if (left.is(Kind::kBigInt) || right.is(Kind::kBigInt)) overflow();
  unsupported(op, left, right);
}

Value apply_unary(Operator op, const Value& operand) {
  if (operand.is_undefined()) throw Failure(operand.as_string());
  if (operand.is_integral()) {
    int64_t result = operand.as_integer();
    if (op == Operator::kNegate && __builtin_sub_overflow(int64_t{0}, result, &result)) overflow();
    return Value::integer(result);
  }
  if (operand.is(Kind::kFloat)) {
    return Value::floating(op == Operator::kNegate ? -operand.as_double() : operand.as_double());
  }
  if (operand.is(Kind::kBigInt)) overflow();
  throw Failure("bad operand type for unary {}: '{}'", symbol_of(op), type_name(operand));
}

bool compare(Operator op, const Value& left, const Value& right, Runtime& runtime) {
  Budget& budget = runtime.budget;
  const bool has_nan = (left.is(Kind::kFloat) && std::isnan(left.as_double())) ||
                       (right.is(Kind::kFloat) && std::isnan(right.as_double()));
  switch (op) {
    case Operator::kEqual:
      return equal(left, right, budget);
    case Operator::kNotEqual:
      return !equal(left, right, budget);
    case Operator::kLess:
      return less(left, right, budget);
    case Operator::kGreater:
      return less(right, left, budget);
    case Operator::kLessEqual:
      return !less(right, left, budget) && !has_nan;
    case Operator::kGreaterEqual:
      return !less(left, right, budget) && !has_nan;
    case Operator::kIn:
      return contains(right, left, budget);
    default:
      return !contains(right, left, budget);
  }
}

}  // namespace braid::jinja

#include "tokenizer/jinja/predicates.h"

#include <unordered_map>

#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/text.h"

namespace braid::jinja {
namespace {

using Check = bool (*)(const Value&);

template <Check check>
bool plain(Runtime&, const Value& input, Arguments arguments) {
  bind("test", std::move(arguments), {}, 0);
  return check(input);
}

template <Operator op>
bool comparison(Runtime& runtime, const Value& input, Arguments arguments) {
  const Bound bound = bind("test", std::move(arguments), {"other"}, 1);
  return compare(op, input, bound[0], runtime);
}

bool is_sequence(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kRange:
      return true;
    default:
      return false;
  }
}

bool divides(Runtime& runtime, const Value& input, int64_t divisor) {
  return !truthy(apply_binary(Operator::kModulo, input, Value::integer(divisor), runtime));
}

bool is_even(Runtime& runtime, const Value& input, Arguments arguments) {
  bind("even", std::move(arguments), {}, 0);
  return divides(runtime, input, 2);
}

bool is_odd(Runtime& runtime, const Value& input, Arguments arguments) {
  bind("odd", std::move(arguments), {}, 0);
  const Value rest = apply_binary(Operator::kModulo, input, Value::integer(2), runtime);
  return equal(rest, Value::integer(1), runtime.budget);
}

bool is_divisible(Runtime& runtime, const Value& input, Arguments arguments) {
  const Bound bound = bind("divisibleby", std::move(arguments), {"num"}, 1);
  return !truthy(apply_binary(Operator::kModulo, input, bound[0], runtime));
}

bool is_same(Runtime&, const Value& input, Arguments arguments) {
  const Bound bound = bind("sameas", std::move(arguments), {"other"}, 1);
  return input.same_as(bound[0]);
}

bool is_in(Runtime& runtime, const Value& input, Arguments arguments) {
  const Bound bound = bind("in", std::move(arguments), {"seq"}, 1);
  return contains(bound[0], input, runtime.budget);
}

bool is_filter(Runtime&, const Value& input, Arguments arguments) {
  bind("filter", std::move(arguments), {}, 0);
  return input.is_string() && find_filter(input.as_string()) != nullptr;
}

bool is_test(Runtime&, const Value& input, Arguments arguments) {
  bind("test", std::move(arguments), {}, 0);
  return input.is_string() && find_predicate(input.as_string()) != nullptr;
}

template <std::string (*convert)(std::string_view)>
bool is_in_case(Runtime& runtime, const Value& input, Arguments arguments) {
  bind("test", std::move(arguments), {}, 0);
  const std::string text = runtime.text(input);
  bool cased = false;
  for (size_t position = 0; position < text.size();) {
    cased = is_cased(next_code_point(text, position)) || cased;
  }
  return cased && convert(text) == text;
}

bool is_callable(const Value& value) {
  return value.is(Kind::kFunction) || value.is(Kind::kMacro) || value.is(Kind::kLoop) ||
         value.is_undefined();
}

bool is_bool(const Value& value) { return value.is(Kind::kBool); }
bool is_true(const Value& value) { return value.is(Kind::kBool) && value.as_bool(); }
bool is_false(const Value& value) { return value.is(Kind::kBool) && !value.as_bool(); }
bool is_integer(const Value& value) { return value.is(Kind::kInt) || value.is(Kind::kBigInt); }
bool is_float(const Value& value) { return value.is(Kind::kFloat); }
bool is_any_number(const Value& value) { return value.is_number() || value.is(Kind::kBigInt); }
bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_string(const Value& value) { return value.is_string(); }
bool is_mapping(const Value& value) { return value.is_dict(); }
bool is_escaped(const Value& value) { return value.is_markup(); }

constexpr Predicate kPredicates[] = {
    {"defined", plain<is_defined>},
    {"undefined", plain<is_undefined>},
    {"none", plain<is_none>},
    {"boolean", plain<is_bool>},
    {"true", plain<is_true>},
    {"false", plain<is_false>},
    {"integer", plain<is_integer>},
    {"float", plain<is_float>},
    {"number", plain<is_any_number>},
    {"string", plain<is_string>},
    {"mapping", plain<is_mapping>},
    {"sequence", plain<is_sequence>},
    {"iterable", plain<is_iterable>},
    {"callable", plain<is_callable>},
    {"escaped", plain<is_escaped>},
    {"sameas", is_same},
    {"even", is_even},
    {"odd", is_odd},
    {"divisibleby", is_divisible},
    {"upper", is_in_case<to_upper>},
    {"lower", is_in_case<to_lower>},
    {"in", is_in},
    {"filter", is_filter},
    {"test", is_test},
    {"==", comparison<Operator::kEqual>},
    {"eq", comparison<Operator::kEqual>},
    {"equalto", comparison<Operator::kEqual>},
    {"!=", comparison<Operator::kNotEqual>},
    {"ne", comparison<Operator::kNotEqual>},
    {">", comparison<Operator::kGreater>},
    {"gt", comparison<Operator::kGreater>},
    {"greaterthan", comparison<Operator::kGreater>},
    {">=", comparison<Operator::kGreaterEqual>},
    {"ge", comparison<Operator::kGreaterEqual>},
    {"<", comparison<Operator::kLess>},
    {"lt", comparison<Operator::kLess>},
    {"lessthan", comparison<Operator::kLess>},
    {"<=", comparison<Operator::kLessEqual>},
    {"le", comparison<Operator::kLessEqual>},
};

}  // namespace

const Predicate* find_predicate(std::string_view name) {
  static const std::unordered_map<std::string_view, const Predicate*> table = [] {
    std::unordered_map<std::string_view, const Predicate*> all;
    for (const Predicate& predicate : kPredicates) all.emplace(predicate.name, &predicate);
    return all;
  }();
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace braid::jinja

#include <algorithm>
#include <string>
#include <unordered_map>

#include "tokenizer/jinja/lookup.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/printf.h"
#include "tokenizer/jinja/text.h"

namespace braid::jinja {
namespace {

using Method = Value (*)(Runtime&, const Value& self, Arguments);
using MethodTable = std::unordered_map<std::string_view, Method>;

Value string_result(Runtime& runtime, const Value& self, std::string text) {
  runtime.budget.charge(text.size() + 32);
  return Value::string_like(self, std::move(text));
}

void no_arguments(std::string_view name, Arguments arguments) {
  bind(name, std::move(arguments), {}, 0);
}

Value string_list(Runtime& runtime, const Value& self, const std::vector<std::string_view>& parts) {
  runtime.budget.charge(self.as_string().size());
  runtime.budget.charge_values(parts.size());
  ValueList items;
  items.reserve(parts.size());
  for (std::string_view part : parts) items.push_back(Value::string_like(self, std::string(part)));
  return Value::list(std::move(items));
}

// strip, lstrip, rstrip
template <Side side>
Value strip_method(Runtime& runtime, const Value& self, Arguments arguments) {
  const Bound bound = bind("strip", std::move(arguments), {"chars"}, 0);
  std::optional<std::string> characters;
  if (bound.has_not_none(0)) characters = bound.text(0, "");
  charge_search(runtime.budget, self.as_string(), characters.value_or(""));
  return string_result(runtime, self, std::string(strip(self.as_string(), side, characters)));
}

template <bool from_right>
Value split_method(Runtime& runtime, const Value& self, Arguments arguments) {
  const Bound bound = bind("split", std::move(arguments), {"sep", "maxsplit"}, 0);
  std::optional<std::string> separator;
  if (bound.has_not_none(0)) {
    separator = bound.text(0, "");
    if (separator->empty()) throw Failure("empty separator");
  }
  charge_search(runtime.budget, self.as_string(), separator.value_or(""));
  return string_list(runtime, self,
                     split(self.as_string(), separator, bound.integer(1, -1), from_right));
}

Value split_lines_method(Runtime& runtime, const Value& self, Arguments arguments) {
  const Bound bound = bind("splitlines", std::move(arguments), {"keepends"}, 0);
  return string_list(runtime, self, split_lines(self.as_string(), bound.flag(0, false)));
}

template <bool from_right>
Value partition_method(Runtime& runtime, const Value& self, Arguments arguments) {
  const Bound bound = bind("partition", std::move(arguments), {"sep"}, 1);
  const std::string separator = bound.text(0, "");
  if (separator.empty()) throw Failure("empty separator");
  const std::string& text = self.as_string();
  charge_search(runtime.budget, text, separator);
  runtime.budget.charge(text.size() + 128);
  const size_t at = from_right ? text.rfind(separator) : text.find(separator);
  const auto part = [&](std::string piece) { return Value::string_like(self, std::move(piece)); };
  if (at == std::string::npos) {
    return from_right ? Value::tuple({part(""), part(""), part(text)})
                      : Value::tuple({part(text), part(""), part("")});
  }
  return Value::tuple(
      {part(text.substr(0, at)), part(separator), part(text.substr(at + separator.size()))});
}

// The part of the string between optional start and end arguments, and its first index.
struct Window {
  std::string text;
  int64_t start = 0;
  bool valid = true;  // start is not beyond the end
};

Window window(Runtime& runtime, const std::string& text, const Bound& bound) {
  const auto length = static_cast<int64_t>(code_point_count(text));
  runtime.budget.charge(text.size());
  const auto resolve = [&](size_t index, int64_t fallback) {
    int64_t value = bound.has_not_none(index) ? bound.integer(index, fallback) : fallback;
    if (value < 0) value = std::max<int64_t>(value + length, 0);
    return value;
  };
  Window result;
  result.start = resolve(1, 0);
  result.valid = result.start <= length;
  result.text = slice_text(text, result.start, std::min(resolve(2, length), length), 1);
  return result;
}

template <bool at_end>
Value affix_test(Runtime& runtime, const Value& self, Arguments arguments) {
  const Bound bound =
      bind(at_end ? "endswith" : "startswith", std::move(arguments), {"affix", "start", "end"}, 1);
  const Window part =
      bound.has(1) ? window(runtime, self.as_string(), bound) : Window{self.as_string(), 0, true};
  runtime.budget.charge(part.text.size() / 16 + 1);
  const auto test = [&](const Value& affix) {
    if (!affix.is_string()) {
      throw Failure("{} first arg must be str or a tuple of str, not {}",
                    at_end ? "endswith" : "startswith", type_name(affix));
    }
    return part.valid && (at_end ? part.text.ends_with(affix.as_string())
                                 : part.text.starts_with(affix.as_string()));
  };
  if (!bound[0].is(Kind::kTuple)) return Value::boolean(test(bound[0]));
  for (const Value& affix : bound[0].as_items()) {
    if (test(affix)) return Value::boolean(true);
  }
  return Value::boolean(false);
}

template <bool from_right, bool must_find>
Value find_text(Runtime& runtime, const Value& self, Arguments arguments) {
  const Bound bound = bind("find", std::move(arguments), {"sub", "start", "end"}, 1);
  const std::string needle = bound.text(0, "");
  const Window part = window(runtime, self.as_string(), bound);
  charge_search(runtime.budget, part.text, needle);
  size_t at = std::string::npos;
  if (part.valid) at = from_right ? part.text.rfind(needle) : part.text.find(needle);
  if (at == std::string::npos) {
    if (must_find) throw Failure("substring not found");
    return Value::integer(-1);
  }
  const std::string_view before = std::string_view(part.text).substr(0, at);
  return Value::integer(part.start + static_cast<int64_t>(code_point_count(before)));
}

Value count_text(Runtime& runtime, const Value& self, Arguments arguments) {
  const Bound bound = bind("count", std::move(arguments), {"sub", "start", "end"}, 1);
  const std::string needle = bound.text(0, "");
  const Window part = window(runtime, self.as_string(), bound);
  if (!part.valid) return Value::integer(0);
  charge_search(runtime.budget, part.text, needle);
  if (needle.empty()) return Value::integer(static_cast<int64_t>(code_point_count(part.text)) + 1);
  int64_t count = 0;
  for (size_t at = part.text.find(needle); at != std::string::npos;
       at = part.text.find(needle, at + needle.size())) {
    ++count;
  }
  return Value::integer(count);
}

Value replace_method(Runtime& runtime, const Value& self, Arguments arguments) {
  const Bound bound = bind("replace", std::move(arguments), {"old", "new", "count"}, 2);
  const std::string from = bound.text(0, "");
  const std::string to = bound.text(1, "");
  const std::string& text = self.as_string();
  charge_search(runtime.budget, text, from);
  const size_t places = from.empty() ? text.size() + 1 : text.size() / from.size();
  if (!to.empty() && places > runtime.budget.limits().work / to.size()) {
    runtime.budget.charge(runtime.budget.limits().work + 1);
  }
  return string_result(runtime, self, replace_all(text, from, to, bound.integer(2, -1)));
}

Value join_method(Runtime& runtime, const Value& self, Arguments arguments) {
  const Bound bound = bind("join", std::move(arguments), {"iterable"}, 1);
  std::string result;
  bool first = true;
  for (const Value& item : iterate(bound[0])) {
    if (!item.is_string()) {
      throw Failure("sequence item: expected str instance, {} found", type_name(item));
    }
    runtime.budget.charge(self.as_string().size() + item.as_string().size());
    if (!first) result += self.as_string();
    first = false;
    result +=
        self.is_markup() && !item.is_markup() ? html_escape(item.as_string()) : item.as_string();
  }
  return string_result(runtime, self, std::move(result));
}

template <bool suffix>
Value remove_affix(Runtime& runtime, const Value& self, Arguments arguments) {
  const Bound bound = bind("removeprefix", std::move(arguments), {"affix"}, 1);
  const std::string affix = bound.text(0, "");
  std::string_view text = self.as_string();
  if (suffix ? text.ends_with(affix) : text.starts_with(affix)) {
    text = suffix ? text.substr(0, text.size() - affix.size()) : text.substr(affix.size());
  }
  return string_result(runtime, self, std::string(text));
}

template <std::string (*convert)(std::string_view)>
Value convert_method(Runtime& runtime, const Value& self, Arguments arguments) {
  no_arguments("str method", std::move(arguments));
  return string_result(runtime, self, convert(self.as_string()));
}

// True if the string is not empty and all its characters have the property.
template <bool (*property)(char32_t)>
Value all_characters(Runtime& runtime, const Value& self, Arguments arguments) {
  no_arguments("str method", std::move(arguments));
  const std::string& text = self.as_string();
  runtime.budget.charge(text.size());
  for (size_t position = 0; position < text.size();) {
    if (!property(next_code_point(text, position))) return Value::boolean(false);
  }
  return Value::boolean(!text.empty());
}

bool is_alphanumeric(char32_t c) { return is_alphabetic(c) || is_numeric(c); }

template <std::string (*convert)(std::string_view)>
Value is_in_case(Runtime& runtime, const Value& self, Arguments arguments) {
  no_arguments("str method", std::move(arguments));
  const std::string& text = self.as_string();
  runtime.budget.charge(text.size());
  bool cased = false;
  for (size_t position = 0; position < text.size();) {
    cased = is_cased(next_code_point(text, position)) || cased;
  }
  return Value::boolean(cased && convert(text) == text);
}

enum class Align { kLeft, kRight, kCenter };

template <Align align>
Value align_method(Runtime& runtime, const Value& self, Arguments arguments) {
  const Bound bound = bind("ljust", std::move(arguments), {"width", "fillchar"}, 1);
  const std::string fill = bound.text(1, " ");
  if (code_point_count(fill) != 1) throw Failure("the fill character must be one character long");
  const auto length = static_cast<int64_t>(code_point_count(self.as_string()));
  const int64_t width = bound.integer(0, 0);
  const int64_t missing = std::max<int64_t>(width - length, 0);
  runtime.budget.charge(static_cast<size_t>(missing));
  int64_t left = align == Align::kRight ? missing : 0;
  if (align == Align::kCenter) left = missing / 2 + (missing & width & 1);
  std::string result;
  for (int64_t i = 0; i < left; ++i) result += fill;
  result += self.as_string();
  for (int64_t i = left; i < missing; ++i) result += fill;
  return string_result(runtime, self, std::move(result));
}

Value zero_fill(Runtime& runtime, const Value& self, Arguments arguments) {
  const Bound bound = bind("zfill", std::move(arguments), {"width"}, 1);
  std::string text = self.as_string();
  const int64_t missing =
      std::max<int64_t>(bound.integer(0, 0) - static_cast<int64_t>(code_point_count(text)), 0);
  runtime.budget.charge(static_cast<size_t>(missing));
  const bool sign = text.starts_with('+') || text.starts_with('-');
  text.insert(sign ? 1 : 0, static_cast<size_t>(missing), '0');
  return string_result(runtime, self, std::move(text));
}

Value format_method(Runtime& runtime, const Value& self, Arguments arguments) {
  return string_result(runtime, self, format_braces(self.as_string(), arguments, runtime));
}

const MethodTable& string_methods() {
  static const MethodTable table = {
      {"strip", strip_method<Side::kBoth>},
      {"lstrip", strip_method<Side::kLeft>},
      {"rstrip", strip_method<Side::kRight>},
      {"split", split_method<false>},
      {"rsplit", split_method<true>},
      {"splitlines", split_lines_method},
      {"partition", partition_method<false>},
      {"rpartition", partition_method<true>},
      {"startswith", affix_test<false>},
      {"endswith", affix_test<true>},
      {"find", find_text<false, false>},
      {"rfind", find_text<true, false>},
      {"index", find_text<false, true>},
      {"rindex", find_text<true, true>},
      {"count", count_text},
      {"replace", replace_method},
      {"join", join_method},
      {"removeprefix", remove_affix<false>},
      {"removesuffix", remove_affix<true>},
      {"upper", convert_method<to_upper>},
      {"lower", convert_method<to_lower>},
      {"title", convert_method<title_case>},
      {"capitalize", convert_method<capitalize>},
      {"swapcase", convert_method<swap_case>},
      {"isspace", all_characters<is_space>},
      {"isalpha", all_characters<is_alphabetic>},
      {"isdigit", all_characters<is_digit>},
      {"isdecimal", all_characters<is_decimal>},
      {"isnumeric", all_characters<is_numeric>},
      {"isalnum", all_characters<is_alphanumeric>},
      {"isupper", is_in_case<to_upper>},
      {"islower", is_in_case<to_lower>},
      {"ljust", align_method<Align::kLeft>},
      {"rjust", align_method<Align::kRight>},
      {"center", align_method<Align::kCenter>},
      {"zfill", zero_fill},
      {"format", format_method},
  };
  return table;
}

template <int part>  // 0 keys, 1 values, 2 both
Value dict_view(Runtime& runtime, const Value& self, Arguments arguments) {
  static constexpr const char* kNames[] = {"dict_keys", "dict_values", "dict_items"};
  no_arguments(kNames[part] + 5, std::move(arguments));
  ValueList items;
  runtime.budget.charge_values(self.as_dict().size() + 1);
  for (const auto& [key, value] : self.as_dict().entries()) {
    items.push_back(part == 0 ? key : part == 1 ? value : Value::tuple({key, value}));
  }
  return Value::from_object(Kind::kView,
                            std::make_shared<ViewObject>(kNames[part], std::move(items)));
}

Value dict_get(Runtime&, const Value& self, Arguments arguments) {
  if (!arguments.keyword.empty()) throw Failure("dict.get() takes no keyword arguments");
  const Bound bound = bind("get", std::move(arguments), {"key", "default"}, 1);
  if (const Value* found = self.as_dict().find(bound[0])) return *found;
  return bound.has(1) ? bound[1] : Value::none();
}

Value copy_method(Runtime&, const Value& self, Arguments arguments) {
  no_arguments("copy", std::move(arguments));
  return self;
}

const MethodTable& dict_methods() {
  static const MethodTable table = {{"items", dict_view<2>},
                                    {"keys", dict_view<0>},
                                    {"values", dict_view<1>},
                                    {"get", dict_get},
                                    {"copy", copy_method}};
  return table;
}

Value count_items(Runtime& runtime, const Value& self, Arguments arguments) {
  const Bound bound = bind("count", std::move(arguments), {"value"}, 1);
  int64_t count = 0;
  for (const Value& item : self.as_items()) count += equal(item, bound[0], runtime.budget) ? 1 : 0;
  return Value::integer(count);
}

Value index_of_item(Runtime& runtime, const Value& self, Arguments arguments) {
  const Bound bound = bind("index", std::move(arguments), {"value"}, 1);
  const ValueList& items = self.as_items();
  for (size_t i = 0; i < items.size(); ++i) {
    if (equal(items[i], bound[0], runtime.budget)) return Value::integer(static_cast<int64_t>(i));
  }
  throw Failure("the value is not in the {}", type_name(self));
}

const MethodTable& list_methods() {
  static const MethodTable table = {
      {"count", count_items}, {"index", index_of_item}, {"copy", copy_method}};
  return table;
}

const MethodTable& tuple_methods() {
  static const MethodTable table = {{"count", count_items}, {"index", index_of_item}};
  return table;
}

// What the immutable sandbox keeps from templates.
bool changes_object(Kind kind, std::string_view name) {
  static constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  static constexpr std::string_view kList[] = {"append", "clear", "pop",    "reverse",
                                               "insert", "sort",  "extend", "remove"};
  if (kind == Kind::kDict)
    return std::find(std::begin(kDict), std::end(kDict), name) != std::end(kDict);
  if (kind == Kind::kList)
    return std::find(std::begin(kList), std::end(kList), name) != std::end(kList);
  return false;
}

const MethodTable* methods_of(Kind kind) {
  switch (kind) {
    case Kind::kString:
      return &string_methods();
    case Kind::kDict:
      return &dict_methods();
    case Kind::kList:
      return &list_methods();
    case Kind::kTuple:
      return &tuple_methods();
    default:
      return nullptr;
  }
}

}  // namespace

std::optional<Value> find_method(const Value& object, std::string_view name) {
  const MethodTable* table = methods_of(object.kind());
  if (table == nullptr) return std::nullopt;
  if (changes_object(object.kind(), name)) {
    return Value::undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(object)));
  }
  const auto found = table->find(name);
  if (found == table->end()) return std::nullopt;
  const Method method = found->second;
  return make_function(
      std::string(name),
      [object, method](Runtime& runtime, Arguments arguments) {
        return method(runtime, object, std::move(arguments));
      },
      object);
}

}  // namespace braid::jinja

#include <algorithm>
#include <functional>
#include <string>

#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/lookup.h"
#include "tokenizer/jinja/loop.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/predicates.h"
#include "tokenizer/jinja/text.h"

namespace braid::jinja {
namespace {

ValueList items_of(Runtime& runtime, const Value& input) {
  runtime.budget.charge_values(static_cast<size_t>(length_of(input).value_or(1)) + 1);
  ValueList items = iterate(input);
  runtime.budget.charge(items.size() * 8);
  return items;
}

Value fold_case(Runtime& runtime, const Value& value) {
  if (!value.is_string()) return value;
  runtime.budget.charge(value.as_string().size() + 32);
  return Value::string(to_lower(value.as_string()));
}

// The attribute of an item, or the item itself without one.
Value sort_key(Runtime& runtime, const Value& item, const Bound& bound, size_t attribute,
               bool case_sensitive) {
  const Value key =
      bound.has_not_none(attribute) ? get_path(item, bound[attribute], runtime.budget) : item;
  return case_sensitive ? key : fold_case(runtime, key);
}

using Keyed = std::pair<Value, Value>;  // key, item

void sort_by_key(Runtime& runtime, std::vector<Keyed>& items, bool descending) {
  std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    return descending ? less(b.first, a.first, runtime.budget)
                      : less(a.first, b.first, runtime.budget);
  });
}

Value values_of(const std::vector<Keyed>& items) {
  ValueList result;
  result.reserve(items.size());
  for (const Keyed& item : items) result.push_back(item.second);
  return Value::list(std::move(result));
}

Value length(Runtime& runtime, const Value& input, Arguments arguments) {
  bind("length", std::move(arguments), {}, 0);
  if (input.is_string()) runtime.budget.charge(input.as_string().size() / 16);
  if (input.is(Kind::kLoop)) {
    return Value::integer(static_cast<int64_t>(input.object_as<LoopObject>().items.size()));
  }
  const std::optional<int64_t> count = length_of(input);
  if (!count) throw Failure("object of type '{}' has no len()", type_name(input));
  return Value::integer(*count);
}

Value first(Runtime& runtime, const Value& input, Arguments arguments) {
  bind("first", std::move(arguments), {}, 0);
  if (input.is(Kind::kIterator)) {
    auto& iterator = input.object_as<IteratorObject>();
    if (iterator.next < iterator.items.size()) return iterator.items[iterator.next++];
  } else {
    const ValueList items = items_of(runtime, input);
    if (!items.empty()) return items.front();
  }
  return Value::undefined("No first item, sequence was empty.");
}

Value last(Runtime& runtime, const Value& input, Arguments arguments) {
  bind("last", std::move(arguments), {}, 0);
  if (input.is(Kind::kIterator)) throw Failure("'generator' object is not reversible");
  const ValueList items = items_of(runtime, input);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value list_filter(Runtime& runtime, const Value& input, Arguments arguments) {
  bind("list", std::move(arguments), {}, 0);
  return Value::list(items_of(runtime, input));
}

Value reverse(Runtime& runtime, const Value& input, Arguments arguments) {
  bind("reverse", std::move(arguments), {}, 0);
  if (input.is_string()) {
    return get_slice(input, Value::none(), Value::none(), Value::integer(-1), runtime.budget);
  }
  ValueList items = items_of(runtime, input);
  std::reverse(items.begin(), items.end());
  return input.is(Kind::kIterator) ? Value::list(std::move(items))
                                   : Value::iterator(std::move(items));
}

Value join(Runtime& runtime, const Value& input, Arguments arguments) {
  const Bound bound = bind("join", std::move(arguments), {"d", "attribute"}, 0);
  const std::string separator = bound.has(0) ? runtime.text(bound[0]) : "";
  std::string result;
  bool is_first = true;
  for (const Value& item : items_of(runtime, input)) {
    if (!is_first) result += separator;
    is_first = false;
    result += runtime.text(bound.has_not_none(1) ? get_path(item, bound[1], runtime.budget) : item);
    runtime.budget.charge(separator.size());
  }
  return runtime.new_string(std::move(result));
}

Value sort(Runtime& runtime, const Value& input, Arguments arguments) {
  const Bound bound =
      bind("sort", std::move(arguments), {"reverse", "case_sensitive", "attribute"}, 0);
  const bool case_sensitive = bound.flag(1, false);
  std::vector<Value> attributes;
  if (bound.has_not_none(2)) {
    if (bound[2].is_string()) {
      for (std::string_view part : split(bound[2].as_string(), ",", -1, false)) {
        attributes.push_back(Value::string(std::string(part)));
      }
    } else {
      attributes.push_back(bound[2]);
    }
  }
  std::vector<Keyed> items;
  for (const Value& item : items_of(runtime, input)) {
    ValueList key;
    for (const Value& attribute : attributes) {
      const Value part = get_path(item, attribute, runtime.budget);
      key.push_back(case_sensitive ? part : fold_case(runtime, part));
    }
    if (attributes.empty()) key.push_back(case_sensitive ? item : fold_case(runtime, item));
    items.emplace_back(key.size() == 1 ? key.front() : Value::list(std::move(key)), item);
  }
  sort_by_key(runtime, items, bound.flag(0, false));
  return values_of(items);
}

Value dict_sort(Runtime& runtime, const Value& input, Arguments arguments) {
  const Bound bound =
      bind("dictsort", std::move(arguments), {"case_sensitive", "by", "reverse"}, 0);
  const std::string by = bound.text(1, "key");
  if (by != "key" && by != "value") {
    throw Failure("You can only sort by either \"key\" or \"value\"");
  }
  if (input.is_undefined()) throw Failure(input.as_string());
  if (!input.is_dict()) throw Failure("'{}' object has no attribute 'items'", type_name(input));
  const bool case_sensitive = bound.flag(0, false);
  std::vector<Keyed> items;
  runtime.budget.charge_values(input.as_dict().size() * 2 + 1);
  for (const auto& [key, value] : input.as_dict().entries()) {
    const Value& sorted = by == "key" ? key : value;
    items.emplace_back(case_sensitive ? sorted : fold_case(runtime, sorted),
                       Value::tuple({key, value}));
  }
  sort_by_key(runtime, items, bound.flag(2, false));
  return values_of(items);
}

Value items_filter(Runtime& runtime, const Value& input, Arguments arguments) {
  bind("items", std::move(arguments), {}, 0);
  if (input.is_undefined()) return Value::iterator({});
  if (!input.is_dict()) throw Failure("Can only get item pairs from a mapping.");
  ValueList items;
  runtime.budget.charge_values(input.as_dict().size() + 1);
  for (const auto& [key, value] : input.as_dict().entries()) {
    items.push_back(Value::tuple({key, value}));
  }
  return Value::iterator(std::move(items));
}

Value unique(Runtime& runtime, const Value& input, Arguments arguments) {
  const Bound bound = bind("unique", std::move(arguments), {"case_sensitive", "attribute"}, 0);
  Dict seen;
  ValueList result;
  for (const Value& item : items_of(runtime, input)) {
    const Value key = sort_key(runtime, item, bound, 1, bound.flag(0, false));
    if (seen.find(key) != nullptr) continue;
    seen.set(key, Value::none());
    result.push_back(item);
  }
  return Value::iterator(std::move(result));
}

template <bool largest>
Value extreme(Runtime& runtime, const Value& input, Arguments arguments) {
  const Bound bound =
      bind(largest ? "max" : "min", std::move(arguments), {"case_sensitive", "attribute"}, 0);
  const ValueList items = items_of(runtime, input);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const bool case_sensitive = bound.flag(0, false);
  Value best = items.front();
  Value best_key = sort_key(runtime, best, bound, 1, case_sensitive);
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = sort_key(runtime, items[i], bound, 1, case_sensitive);
    if (largest ? less(best_key, key, runtime.budget) : less(key, best_key, runtime.budget)) {
      best = items[i];
      best_key = std::move(key);
    }
  }
  return best;
}

Value sum(Runtime& runtime, const Value& input, Arguments arguments) {
  const Bound bound = bind("sum", std::move(arguments), {"attribute", "start"}, 0);
  Value total = bound.has(1) ? bound[1] : Value::integer(0);
  if (total.is_string()) throw Failure("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : items_of(runtime, input)) {
    total = apply_binary(Operator::kAdd, total,
                         bound.has_not_none(0) ? get_path(item, bound[0], runtime.budget) : item,
                         runtime);
  }
  return total;
}

// Takes the keyword argument of that name out of `arguments`.
std::optional<Value> take_keyword(Arguments& arguments, std::string_view name) {
  for (auto it = arguments.keyword.begin(); it != arguments.keyword.end(); ++it) {
    if (it->first != name) continue;
    Value value = std::move(it->second);
    arguments.keyword.erase(it);
    return value;
  }
  return std::nullopt;
}

Value map_filter(Runtime& runtime, const Value& input, Arguments arguments) {
  if (!truthy(input)) return Value::iterator({});
  ValueList result;
  std::optional<Value> attribute;
  if (arguments.positional.empty()) attribute = take_keyword(arguments, "attribute");
  if (attribute) {
    const std::optional<Value> fallback = take_keyword(arguments, "default");
    if (!arguments.keyword.empty()) {
      throw Failure("map: unexpected keyword argument '{}'", arguments.keyword.front().first);
    }
    for (const Value& item : items_of(runtime, input)) {
      Value value = get_path(item, *attribute, runtime.budget);
      if (value.is_undefined() && fallback && !fallback->is_none()) value = *fallback;
      result.push_back(std::move(value));
    }
    return Value::iterator(std::move(result));
  }
  if (arguments.positional.empty()) throw Failure("map requires a filter argument");
  const Value name = arguments.positional.front();
  const Filter* filter = name.is_string() ? find_filter(name.as_string()) : nullptr;
  if (filter == nullptr) throw Failure("unsupported filter '{}'", runtime.text(name));
  arguments.positional.erase(arguments.positional.begin());
  const Budget::Level level(runtime.budget);
  for (const Value& item : items_of(runtime, input)) {
    result.push_back(filter->apply(runtime, item, arguments));
  }
  return Value::iterator(std::move(result));
}

template <bool by_attribute, bool keep>
Value choose(Runtime& runtime, const Value& input, Arguments arguments) {
  if (!truthy(input)) return Value::iterator({});
  auto& positional = arguments.positional;
  std::optional<Value> attribute;
  if (by_attribute) {
    if (positional.empty()) throw Failure("Missing parameter for attribute name");
    attribute = positional.front();
    positional.erase(positional.begin());
  }
  const Predicate* predicate = nullptr;
  if (!positional.empty()) {
    const Value name = positional.front();
    predicate = name.is_string() ? find_predicate(name.as_string()) : nullptr;
    if (predicate == nullptr) throw Failure("unsupported test '{}'", runtime.text(name));
    positional.erase(positional.begin());
  }
  ValueList result;
  for (const Value& item : items_of(runtime, input)) {
    const Value subject = attribute ? get_path(item, *attribute, runtime.budget) : item;
    const bool matches =
        predicate != nullptr ? predicate->test(runtime, subject, arguments) : truthy(subject);
    if (matches == keep) result.push_back(item);
  }
  return Value::iterator(std::move(result));
}

Value batch(Runtime& runtime, const Value& input, Arguments arguments) {
  const Bound bound = bind("batch", std::move(arguments), {"linecount", "fill_with"}, 1);
  const int64_t size = bound.integer(0, 1);
  ValueList result;
  ValueList row;
  for (const Value& item : items_of(runtime, input)) {
    if (static_cast<int64_t>(row.size()) == size) {
      result.push_back(Value::list(std::move(row)));
      row = {};
    }
    row.push_back(item);
  }
  if (!row.empty()) {
    if (bound.has_not_none(1) && static_cast<int64_t>(row.size()) < size) {
      runtime.budget.charge_values(static_cast<size_t>(size));
      row.resize(static_cast<size_t>(size), bound[1]);
    }
    result.push_back(Value::list(std::move(row)));
  }
  return Value::iterator(std::move(result));
}

Value slice(Runtime& runtime, const Value& input, Arguments arguments) {
  const Bound bound = bind("slice", std::move(arguments), {"slices", "fill_with"}, 1);
  const int64_t count = bound.integer(0, 1);
  if (count == 0) throw Failure("integer division or modulo by zero");
  const ValueList items = items_of(runtime, input);
  if (count < 0) return Value::iterator({});
  runtime.budget.charge_values(static_cast<size_t>(count));
  const auto total = static_cast<int64_t>(items.size());
  const int64_t each = total / count;
  const int64_t longer = total % count;
  ValueList result;
  auto begin = items.begin();
  for (int64_t i = 0; i < count; ++i) {
    const auto end = begin + (each + (i < longer ? 1 : 0));
    ValueList row(begin, end);
    if (bound.has_not_none(1) && i >= longer) row.push_back(bound[1]);
    result.push_back(Value::list(std::move(row)));
    begin = end;
  }
  return Value::iterator(std::move(result));
}

Value default_filter(Runtime&, const Value& input, Arguments arguments) {
  const Bound bound = bind("default", std::move(arguments), {"default_value", "boolean"}, 0);
  if (!input.is_undefined() && !(bound.flag(1, false) && !truthy(input))) return input;
  return bound.has(0) ? bound[0] : Value::string("");
}

Value attr(Runtime& runtime, const Value& input, Arguments arguments) {
  const Bound bound = bind("attr", std::move(arguments), {"name"}, 1);
  const std::string name = runtime.text(bound[0]);
  if (!input.is_dict()) return get_attribute(input, name);
  return find_method(input, name)
      .value_or(Value::undefined(fmt::format("'dict object' has no attribute '{}'", name)));
}

constexpr Filter kFilters[] = {{"length", length},
                               {"count", length},
                               {"first", first},
                               {"last", last},
                               {"list", list_filter},
                               {"reverse", reverse},
                               {"join", join},
                               {"sort", sort},
                               {"dictsort", dict_sort},
                               {"items", items_filter},
                               {"unique", unique},
                               {"min", extreme<false>},
                               {"max", extreme<true>},
                               {"sum", sum},
                               {"map", map_filter},
                               {"select", choose<false, true>},
                               {"reject", choose<false, false>},
                               {"selectattr", choose<true, true>},
                               {"rejectattr", choose<true, false>},
                               {"batch", batch},
                               {"slice", slice},
                               {"default", default_filter},
                               {"d", default_filter},
                               {"attr", attr}};

}  // namespace

std::span<const Filter> sequence_filters() { return kFilters; }

}  // namespace braid::jinja

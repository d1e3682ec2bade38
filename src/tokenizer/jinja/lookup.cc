#include "tokenizer/jinja/lookup.h"

#include <algorithm>

#include "tokenizer/jinja/loop.h"
#include "tokenizer/jinja/repr.h"
#include "tokenizer/jinja/text.h"

namespace braid::jinja {
namespace {

Value missing(const Value& object, std::string_view name) {
  if (object.is_none()) return Value::undefined(fmt::format("'None' has no attribute '{}'", name));
  const std::string owner =
      object.is(Kind::kNamespace) ? "namespace object" : type_name(object) + " object";
  return Value::undefined(fmt::format("'{}' has no attribute '{}'", owner, name));
}

std::optional<Value> find_attribute(const Value& object, const std::string& name) {
  switch (object.kind()) {
    case Kind::kNamespace: {
      const Value* found = object.as_namespace().attributes.find(name);
      return found != nullptr ? std::optional(*found) : std::nullopt;
    }
    case Kind::kLoop:
      return loop_attribute(object, name);
    default:
      return find_method(object, name);
  }
}

std::optional<int64_t> sequence_index(const Value& key, int64_t length) {
  int64_t index = key.as_integer();
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  return index;
}

std::optional<Value> find_item(const Value& object, const Value& key, Budget& budget) {
  switch (object.kind()) {
    case Kind::kDict: {
      if (key.is(Kind::kList) || key.is_dict()) return std::nullopt;
      const Value* found = object.as_dict().find(key);
      return found != nullptr ? std::optional(*found) : std::nullopt;
    }
    case Kind::kList:
    case Kind::kTuple: {
      if (!key.is_integral()) return std::nullopt;
      const ValueList& items = object.as_items();
      const auto index = sequence_index(key, static_cast<int64_t>(items.size()));
      return index ? std::optional(items[static_cast<size_t>(*index)]) : std::nullopt;
    }
    case Kind::kRange: {
      if (!key.is_integral()) return std::nullopt;
      const auto& range = object.object_as<RangeObject>();
      const auto index = sequence_index(key, range.size());
      return index ? std::optional(Value::integer(range.at(*index))) : std::nullopt;
    }
    case Kind::kString: {
      if (!key.is_integral()) return std::nullopt;
      const std::string& text = object.as_string();
      budget.charge(text.size() / 4 + 1);
      const auto index = sequence_index(key, static_cast<int64_t>(code_point_count(text)));
      if (!index) return std::nullopt;
      const size_t begin = byte_offset(text, static_cast<size_t>(*index));
      size_t end = begin;
      next_code_point(text, end);
      return Value::string_like(object, text.substr(begin, end - begin));
    }
    default:
      return std::nullopt;
  }
}

std::optional<int64_t> slice_bound(const Value& bound) {
  if (bound.is_none()) return std::nullopt;
  if (!bound.is_integral()) {
    throw Failure("slice indices must be integers or None, not {}", type_name(bound));
  }
  return bound.as_integer();
}

ValueList slice_items(const ValueList& items, std::optional<int64_t> start,
                      std::optional<int64_t> stop, int64_t step) {
  const auto length = static_cast<int64_t>(items.size());
  const auto clamp = [&](std::optional<int64_t> bound, int64_t fallback) {
    if (!bound) return fallback;
    int64_t value = *bound < 0 ? *bound + length : *bound;
    if (value < 0) value = step < 0 ? -1 : 0;
    return std::min(value, step < 0 ? length - 1 : length);
  };
  const int64_t first = clamp(start, step < 0 ? length - 1 : 0);
  const int64_t last = clamp(stop, step < 0 ? -1 : length);
  ValueList result;
  for (int64_t i = first; step > 0 ? i < last : i > last;) {
    result.push_back(items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return result;
}

}  // namespace

Value get_attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) throw Failure(object.as_string());
  if (name.starts_with("__")) {
    return Value::undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(object)));
  }
  if (std::optional<Value> found = find_attribute(object, name)) return *std::move(found);
  if (object.is_dict()) {
    if (const Value* found = object.as_dict().find(name)) return *found;
  }
  return missing(object, name);
}

Value get_item(const Value& object, const Value& key, Budget& budget) {
  if (object.is_undefined()) throw Failure(object.as_string());
  if (std::optional<Value> found = find_item(object, key, budget)) return *std::move(found);
  if (key.is_string()) {
    if (key.as_string().starts_with("__")) return missing(object, key.as_string());
    if (std::optional<Value> found = find_attribute(object, key.as_string())) {
      return *std::move(found);
    }
    return missing(object, key.as_string());
  }
  if (object.is_dict() || object.is(Kind::kList) || object.is(Kind::kTuple) || object.is_string()) {
    return Value::undefined(
        fmt::format("{} object has no element {}", type_name(object), to_repr(key, budget)));
  }
  return missing(object, to_repr(key, budget));
}

Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step,
                Budget& budget) {
  if (object.is_undefined()) throw Failure(object.as_string());
  if (object.is(Kind::kRange)) {
    throw Failure("unsupported slice of a range: make it a list first (range(...) | list)");
  }
  if (!object.is_string() && !object.is(Kind::kList) && !object.is(Kind::kTuple)) {
    throw Failure("'{}' object cannot be sliced", type_name(object));
  }
  const int64_t stride = slice_bound(step).value_or(1);
  if (stride == 0) throw Failure("slice step cannot be zero");
  if (object.is_string()) {
    budget.charge(object.as_string().size() / 4 + 32);
    std::string text =
        slice_text(object.as_string(), slice_bound(start), slice_bound(stop), stride);
    budget.charge(text.size());
    return Value::string_like(object, std::move(text));
  }
  ValueList result = slice_items(object.as_items(), slice_bound(start), slice_bound(stop), stride);
  budget.charge_values(result.size() + 1);
  return object.is(Kind::kTuple) ? Value::tuple(std::move(result)) : Value::list(std::move(result));
}

Value get_path(const Value& object, const Value& path, Budget& budget) {
  if (path.is_integral()) return get_item(object, path, budget);
  if (!path.is_string()) throw Failure("an attribute must be named by a string or integer");
  Value value = object;
  for (std::string_view part : split(path.as_string(), ".", -1, false)) {
    const bool index =
        !part.empty() && part.size() < 18 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    value = get_item(
        value,
        index ? Value::integer(std::stoll(std::string(part))) : Value::string(std::string(part)),
        budget);
  }
  return value;
}

}  // namespace braid::jinja

#include <cmath>
#include <type_traits>

#include "base/error.h"
#include "checkpoint/gguf.h"
#include "checkpoint/printable.h"

namespace braid {
namespace {

using Value = GgufMetadata::Value;
using Array = GgufMetadata::Array;

std::string describe_array(const Array& array) {
  return std::visit(
      [](const auto& items) {
        using Item = typename std::decay_t<decltype(items)>::value_type;
        const std::string_view kind = std::is_same_v<Item, int64_t>  ? "integers"
                                      : std::is_same_v<Item, double> ? "numbers"
                                      : std::is_same_v<Item, bool>   ? "booleans"
                                                                     : "strings";
        return fmt::format("a list of {} {}", items.size(), kind);
      },
      array);
}

std::string describe(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    return "the string \"" + printable(*text, 40) + "\"";
  }
  if (const auto* array = std::get_if<Array>(&value)) return describe_array(*array);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<double>(&value)) {
    return fmt::format("the number {} (floating point)", *number);
  }
  return fmt::format("the integer {}", std::get<int64_t>(value));
}

const Value* lookup(const GgufMetadata& metadata, std::string_view key) {
  const auto it = metadata.values.find(key);
  return it == metadata.values.end() ? nullptr : &it->second;
}

[[noreturn]] void fail_type(const GgufMetadata& metadata, std::string_view key,
                            std::string_view expected, const Value& found) {
  metadata.fail(key, fmt::format("expected {}, found {}", expected, describe(found)));
}

// A single value of type T, or absent.
template <typename T>
std::optional<T> find_value(const GgufMetadata& metadata, std::string_view key,
                            std::string_view expected) {
  const Value* value = lookup(metadata, key);
  if (value == nullptr) return std::nullopt;
  if (const T* plain = std::get_if<T>(value)) return *plain;
  fail_type(metadata, key, expected, *value);
}

template <typename T>
const std::vector<T>* as_list(const Value& value) {
  const Array* array = std::get_if<Array>(&value);
  return array == nullptr ? nullptr : std::get_if<std::vector<T>>(array);
}

// An empty list has no certain element type: writers that infer it from the first item guess.
bool is_empty_list(const Value& value) {
  const Array* array = std::get_if<Array>(&value);
  return array != nullptr && std::visit([](const auto& items) { return items.empty(); }, *array);
}

void check_count(const GgufMetadata& metadata, std::string_view key, size_t found, int64_t count) {
  if (static_cast<int64_t>(found) != count) {
    metadata.fail(key, fmt::format("a list of {} values, but {} are needed", found, count));
  }
}

}  // namespace

void GgufMetadata::fail(std::string_view key, std::string_view message) const {
  throw Error("{}: metadata {}: {}", origin, printable(key), message);
}

bool GgufMetadata::has(std::string_view key) const { return lookup(*this, key) != nullptr; }

bool GgufMetadata::is_list(std::string_view key) const {
  const Value* value = lookup(*this, key);
  return value != nullptr && std::holds_alternative<Array>(*value);
}

int64_t GgufMetadata::integer(std::string_view key) const {
  if (const auto value = find_integer(key)) return *value;
  fail(key, "missing; an integer is needed");
}

double GgufMetadata::number(std::string_view key) const {
  if (const auto value = find_number(key)) return *value;
  fail(key, "missing; a number is needed");
}

std::string GgufMetadata::string(std::string_view key) const {
  if (auto value = find_string(key)) return *std::move(value);
  fail(key, "missing; a string is needed");
}

std::optional<int64_t> GgufMetadata::find_integer(std::string_view key) const {
  return find_value<int64_t>(*this, key, "an integer");
}

std::optional<double> GgufMetadata::find_number(std::string_view key) const {
  const Value* value = lookup(*this, key);
  if (value == nullptr) return std::nullopt;
  if (const auto* whole = std::get_if<int64_t>(value)) return static_cast<double>(*whole);
  return find_value<double>(*this, key, "a number");
}

std::optional<bool> GgufMetadata::find_boolean(std::string_view key) const {
  return find_value<bool>(*this, key, "a boolean");
}

std::optional<std::string> GgufMetadata::find_string(std::string_view key) const {
  return find_value<std::string>(*this, key, "a string");
}

std::optional<std::vector<std::string>> GgufMetadata::find_strings(std::string_view key) const {
  const Value* value = lookup(*this, key);
  if (value == nullptr) return std::nullopt;
  if (is_empty_list(*value)) return std::vector<std::string>{};
  if (const auto* items = as_list<std::string>(*value)) return *items;
  fail_type(*this, key, "a list of strings", *value);
}

std::optional<std::vector<double>> GgufMetadata::find_numbers(std::string_view key) const {
  const Value* value = lookup(*this, key);
  if (value == nullptr) return std::nullopt;
  if (is_empty_list(*value)) return std::vector<double>{};
  if (const auto* items = as_list<double>(*value)) return *items;
  if (const auto* items = as_list<int64_t>(*value)) {
    return std::vector<double>(items->begin(), items->end());
  }
  fail_type(*this, key, "a list of numbers", *value);
}

std::optional<std::vector<int64_t>> GgufMetadata::find_integers(std::string_view key) const {
  const Value* value = lookup(*this, key);
  if (value == nullptr) return std::nullopt;
  if (is_empty_list(*value)) return std::vector<int64_t>{};
  if (const auto* items = as_list<int64_t>(*value)) return *items;
  if (const auto* single = std::get_if<int64_t>(value)) return std::vector<int64_t>{*single};
  fail_type(*this, key, "an integer or a list of integers", *value);
}

std::optional<std::vector<int64_t>> GgufMetadata::find_integers_per_layer(std::string_view key,
                                                                          int64_t count) const {
  if (lookup(*this, key) == nullptr) return std::nullopt;
  if (!is_list(key)) {
    return std::vector<int64_t>(static_cast<size_t>(count), *find_integer(key));
  }
  std::optional<std::vector<int64_t>> items = find_integers(key);
  check_count(*this, key, items->size(), count);
  return items;
}

std::optional<std::vector<bool>> GgufMetadata::find_booleans_per_layer(std::string_view key,
                                                                       int64_t count) const {
  const Value* value = lookup(*this, key);
  if (value == nullptr) return std::nullopt;
  if (const auto* flag = std::get_if<bool>(value)) {
    return std::vector<bool>(static_cast<size_t>(count), *flag);
  }
  if (const auto* items = as_list<bool>(*value)) {
    check_count(*this, key, items->size(), count);
    return *items;
  }
  // Some writers store the flags as integers.
  if (const auto* items = as_list<int64_t>(*value)) {
    check_count(*this, key, items->size(), count);
    std::vector<bool> out;
    for (const int64_t item : *items) {
      if (item != 0 && item != 1) fail(key, fmt::format("expected 0 or 1, found {} in it", item));
      out.push_back(item == 1);
    }
    return out;
  }
  fail_type(*this, key, "a boolean or a list of booleans", *value);
}

}  // namespace braid

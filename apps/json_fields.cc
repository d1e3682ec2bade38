#include "apps/json_fields.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "checkpoint/printable.h"

namespace braid {
namespace {

void expect(bool holds, const char* key, const char* type) {
  if (!holds) throw Error("\"{}\": expected {}", key, type);
}

}  // namespace

JsonFields::JsonFields(const Json& object, const std::string& what) : object_(object) {
  if (!object.is_object()) throw Error("{}: expected a JSON object", what);
}

bool JsonFields::has(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

void JsonFields::allow_only(std::initializer_list<const char*> known) const {
  for (const auto& [key, value] : object_.items()) {
    const std::string_view name = key;
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw Error("\"{}\": unknown field (known: {})", printable(name), fmt::join(known, ", "));
  }
}

std::string JsonFields::string(const char* key) const {
  expect(at(key).is_string(), key, "a string");
  return at(key).get<std::string>();
}

float JsonFields::number(const char* key) const {
  expect(at(key).is_number(), key, "a number");
  return at(key).get<float>();
}

bool JsonFields::boolean(const char* key) const {
  expect(at(key).is_boolean(), key, "true or false");
  return at(key).get<bool>();
}

int64_t JsonFields::integer(const char* key, int64_t least, int64_t most) const {
  const Json& value = at(key);
  expect(value.is_number_integer(), key, "an integer");
  const bool too_large = value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX;
  if (too_large || value.get<int64_t>() < least || value.get<int64_t>() > most) {
    throw Error("\"{}\": {} is out of range", key, value.dump());
  }
  return value.get<int64_t>();
}

uint64_t JsonFields::unsigned_integer(const char* key) const {
  expect(at(key).is_number_unsigned(), key, "an integer of at least 0");
  return at(key).get<uint64_t>();
}

const JsonFields::Json& JsonFields::list(const char* key) const {
  expect(at(key).is_array(), key, "a list");
  return at(key);
}

}  // namespace braid

#pragma once

#include <simdjson.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace braid {

// A JSON value with its place in the file, for messages. Only for .cc files of this folder. The
// parser that made the value must outlive it.
class JsonNode {
 public:
  JsonNode(simdjson::dom::element value, const std::string& origin, std::string path)
      : value_(value), origin_(&origin), path_(std::move(path)) {}

  [[noreturn]] void fail(std::string_view what) const {
    throw Error("{}: {}: {}", *origin_, path_.empty() ? "top level" : path_, what);
  }

  simdjson::dom::element value() const { return value_; }
  bool is_string() const { return value_.is_string(); }
  bool is_object() const { return value_.is_object(); }
  bool is_array() const { return value_.is_array(); }

  // nullopt when the field is absent or null.
  std::optional<JsonNode> find(std::string_view key) const {
    simdjson::dom::element field;
    if (object()[key].get(field) != simdjson::SUCCESS || field.is_null()) return std::nullopt;
    return child(field, key);
  }
  JsonNode get(std::string_view key) const {
    if (auto field = find(key)) return *std::move(field);
    fail(fmt::format("field '{}' is missing", key));
  }
  JsonNode child(simdjson::dom::element value, std::string_view key) const {
    return JsonNode(value, *origin_,
                    path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key));
  }
  JsonNode element(simdjson::dom::element value, size_t index) const {
    return JsonNode(value, *origin_, fmt::format("{}[{}]", path_, index));
  }

  simdjson::dom::object object() const {
    simdjson::dom::object result;
    if (value_.get(result) != simdjson::SUCCESS) fail("must be an object");
    return result;
  }
  simdjson::dom::array array() const {
    simdjson::dom::array result;
    if (value_.get(result) != simdjson::SUCCESS) fail("must be a list");
    return result;
  }
  std::string_view string() const {
    std::string_view result;
    if (value_.get(result) != simdjson::SUCCESS) fail("must be a string");
    return result;
  }
  bool boolean() const {
    bool result = false;
    if (value_.get(result) != simdjson::SUCCESS) fail("must be true or false");
    return result;
  }
  int64_t integer() const {
    int64_t result = 0;
    if (value_.get(result) != simdjson::SUCCESS) fail("must be a whole number");
    return result;
  }

  bool flag(std::string_view key, bool otherwise) const {
    const auto field = find(key);
    return field ? field->boolean() : otherwise;
  }
  std::string_view text(std::string_view key, std::string_view otherwise) const {
    const auto field = find(key);
    return field ? field->string() : otherwise;
  }

 private:
  simdjson::dom::element value_;
  const std::string* origin_;
  std::string path_;
};

}  // namespace braid

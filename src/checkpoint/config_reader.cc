#include "checkpoint/config_reader.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/json_error.h"
#include "checkpoint/printable.h"

namespace braid {
namespace {

using Json = nlohmann::json;

// Real files nest a handful of levels.
constexpr int kMaxDepth = 64;

std::string describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case Json::value_t::string:
      return "the string \"" + printable(value.get_ref<const std::string&>(), 40) + "\"";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::object:
      return "an object";
    default:
      return "the number " + value.dump();
  }
}

std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

}  // namespace

ConfigReader::ConfigReader(std::string_view json_text, std::string origin)
    : object_(nullptr), origin_(std::move(origin)) {
  // The callback sees each object and list as it opens; it refuses deep nesting before the
  // document grows.
  const Json::parser_callback_t bound_depth = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) throw Error("{}: nested more than {} levels", origin_, kMaxDepth);
    return true;
  };
  try {
    root_ = std::make_shared<const Json>(Json::parse(json_text, bound_depth));
  } catch (const Json::exception& error) {
    throw Error("{}: not valid JSON: {}", origin_, json_reason(error));
  }
  if (!root_->is_object()) {
    throw Error("{}: expected a JSON object, found {}", origin_, describe(*root_));
  }
  object_ = root_.get();
}

ConfigReader::ConfigReader(std::shared_ptr<const Json> root, const Json* object, std::string origin,
                           std::string prefix)
    : root_(std::move(root)),
      object_(object),
      origin_(std::move(origin)),
      prefix_(std::move(prefix)) {}

ConfigReader::ConfigReader(const ConfigReader&) = default;
ConfigReader& ConfigReader::operator=(const ConfigReader&) = default;
ConfigReader::~ConfigReader() = default;

const Json* ConfigReader::find(std::string_view key) const {
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

bool ConfigReader::has(std::string_view key) const { return find(key) != nullptr; }

void ConfigReader::fail(std::string_view key, std::string_view message) const {
  throw Error("{}: {}{}: {}", origin_, prefix_, printable(key), message);
}

void ConfigReader::fail_type(std::string_view key, std::string_view expected) const {
  fail(key, fmt::format("expected {}, found {}", expected, describe(*find(key))));
}

int64_t ConfigReader::integer(std::string_view key) const {
  if (const auto value = find_integer(key)) return *value;
  fail(key, "missing; an integer is needed");
}

double ConfigReader::number(std::string_view key) const {
  if (const auto value = find_number(key)) return *value;
  fail(key, "missing; a number is needed");
}

std::string ConfigReader::string(std::string_view key) const {
  if (auto value = find_string(key)) return *std::move(value);
  fail(key, "missing; a string is needed");
}

std::optional<int64_t> ConfigReader::find_integer(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = as_integer(*value);
  if (!number) fail_type(key, "an integer");
  return number;
}

std::optional<double> ConfigReader::find_number(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) fail_type(key, "a number");
  return value->get<double>();
}

std::optional<bool> ConfigReader::find_boolean(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail_type(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> ConfigReader::find_string(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail_type(key, "a string");
  return value->get<std::string>();
}

std::optional<std::vector<std::string>> ConfigReader::find_strings(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) fail_type(key, "a list of strings");
  std::vector<std::string> out;
  for (const Json& item : *value) {
    if (!item.is_string()) {
      fail(key, fmt::format("expected a list of strings, found {} in it", describe(item)));
    }
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::optional<std::vector<int64_t>> ConfigReader::find_integers(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) {
    const auto number = as_integer(*value);
    if (!number) fail_type(key, "an integer or a list of integers");
    return std::vector<int64_t>{*number};
  }
  std::vector<int64_t> out;
  for (const Json& item : *value) {
    const auto number = as_integer(item);
    if (!number) {
      fail(key, fmt::format("expected a list of integers, found {} in it", describe(item)));
    }
    out.push_back(*number);
  }
  return out;
}

std::optional<ConfigReader> ConfigReader::find_object(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) fail_type(key, "an object");
  return ConfigReader(root_, value, origin_, prefix_ + std::string(key) + ".");
}

std::optional<std::vector<ConfigReader>> ConfigReader::find_objects(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) fail_type(key, "a list of objects");
  std::vector<ConfigReader> out;
  for (const Json& item : *value) {
    if (!item.is_object()) {
      fail(key, fmt::format("expected a list of objects, found {} in it", describe(item)));
    }
    out.push_back(
        ConfigReader(root_, &item, origin_, fmt::format("{}{}[{}].", prefix_, key, out.size())));
  }
  return out;
}

bool ConfigReader::is_string(std::string_view key) const {
  const Json* value = find(key);
  return value != nullptr && value->is_string();
}

bool ConfigReader::is_list(std::string_view key) const {
  const Json* value = find(key);
  return value != nullptr && value->is_array();
}

std::vector<std::string> ConfigReader::keys() const {
  std::vector<std::string> out;
  for (const auto& item : object_->items()) out.push_back(item.key());
  return out;
}

}  // namespace braid

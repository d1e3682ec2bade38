#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

// A JSON object read by field, with errors that name the file and the dotted path of the field
// ("config.json: text_config.hidden_size: expected an integer, found a string"). An absent field
// and a null one are the same. Copies share the document.
class ConfigReader {
 public:
  // Throws Error with line and column on malformed JSON, or if the top level is no object or nests
  // more than 64 levels. Of a repeated key the last counts.
  ConfigReader(std::string_view json_text, std::string origin);
  ConfigReader(const ConfigReader&);
  ConfigReader& operator=(const ConfigReader&);
  ~ConfigReader();

  bool has(std::string_view key) const;  // present and not null
  // Required fields.
  int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;
  std::string string(std::string_view key) const;
  // Optional fields; a wrong type is still an Error.
  std::optional<int64_t> find_integer(std::string_view key) const;
  std::optional<double> find_number(std::string_view key) const;
  std::optional<bool> find_boolean(std::string_view key) const;
  std::optional<std::string> find_string(std::string_view key) const;
  std::optional<std::vector<std::string>> find_strings(std::string_view key) const;
  // An integer or a list of integers.
  std::optional<std::vector<int64_t>> find_integers(std::string_view key) const;
  // A nested object.
  std::optional<ConfigReader> find_object(std::string_view key) const;
  // A list of objects.
  std::optional<std::vector<ConfigReader>> find_objects(std::string_view key) const;
  // For fields that files write in more than one form.
  bool is_string(std::string_view key) const;
  bool is_list(std::string_view key) const;
  std::vector<std::string> keys() const;

  // An Error that names the file and this object's field.
  [[noreturn]] void fail(std::string_view key, std::string_view message) const;
  const std::string& origin() const { return origin_; }

 private:
  ConfigReader(std::shared_ptr<const nlohmann::json> root, const nlohmann::json* object,
               std::string origin, std::string prefix);
  const nlohmann::json* find(std::string_view key) const;
  [[noreturn]] void fail_type(std::string_view key, std::string_view expected) const;

  std::shared_ptr<const nlohmann::json> root_;
  const nlohmann::json* object_;
  std::string origin_;
  std::string prefix_;  // "text_config." or empty
};

}  // namespace braid

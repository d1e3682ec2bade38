#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace braid {

// Typed access to the fields of a JSON object. A field that is null counts as absent. Errors name
// the field and what is expected; a number in quotes is no number.
class JsonFields {
 public:
  using Json = nlohmann::json;

  // Throws Error if `object` is none; `what` names it.
  JsonFields(const Json& object, const std::string& what);

  bool has(const char* key) const;
  // Throws Error naming the first field that is not in the list.
  void allow_only(std::initializer_list<const char*> known) const;

  const Json& at(const char* key) const { return object_.at(key); }
  std::string string(const char* key) const;
  float number(const char* key) const;
  bool boolean(const char* key) const;
  int64_t integer(const char* key, int64_t least = std::numeric_limits<int64_t>::min(),
                  int64_t most = std::numeric_limits<int64_t>::max()) const;
  uint64_t unsigned_integer(const char* key) const;
  const Json& list(const char* key) const;

 private:
  const Json& object_;
};

}  // namespace braid

#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/jinja/budget.h"
#include "tokenizer/jinja/value.h"

namespace braid::jinja {

// JSON text to a value: objects keep their order, integers beyond 64 bits their digits. Throws
// Failure naming the byte for text that is not JSON.
Value parse_json(std::string_view text);

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // text of one level; set: one item a line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

// Python's json.dumps(value). Throws Failure for values that JSON cannot hold.
std::string dump_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace braid::jinja

#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "tokenizer/jinja/value.h"

namespace braid::jinja {

// The `loop` variable of a running for statement.
struct LoopObject : Object {
  ValueList items;
  size_t index0 = 0;
  int64_t depth0 = 0;
  std::optional<ValueList> last_changed;                // arguments of the last loop.changed()
  std::function<Value(const Value& iterable)> recurse;  // of recursive loops, while they run
};

// An attribute of the loop variable, or nothing.
std::optional<Value> loop_attribute(const Value& loop, std::string_view name);

}  // namespace braid::jinja

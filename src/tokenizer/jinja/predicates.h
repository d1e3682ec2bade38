#pragma once

#include <string_view>

#include "tokenizer/jinja/runtime.h"
#include "tokenizer/jinja/value.h"

namespace braid::jinja {

// What may stand after `is`.
struct Predicate {
  std::string_view name;
  bool (*test)(Runtime& runtime, const Value& input, Arguments arguments);
};

// The test of that name, or null.
const Predicate* find_predicate(std::string_view name);

}  // namespace braid::jinja

#pragma once

#include <string>
#include <string_view>

#include "tokenizer/jinja/budget.h"
#include "tokenizer/jinja/value.h"

namespace braid::jinja {

// Python's str(value): what {{ value }} prints.
std::string to_text(const Value& value, Budget& budget);
// Python's repr(value).
std::string to_repr(const Value& value, Budget& budget);
// Shortest decimal that reads back as the same double, in Python's form (1.0, 1e+16, inf, nan).
std::string float_text(double value);

}  // namespace braid::jinja

#pragma once

#include <string>

#include "tokenizer/jinja/runtime.h"
#include "tokenizer/jinja/value.h"

namespace braid::jinja {

// Python's format % arguments (a tuple, a mapping for %(name)s, or one value).
std::string format_percent(const Value& format, const Value& arguments, Runtime& runtime);
// Python's format.format(...): fields by position or name, !s and !r, no format specification.
std::string format_braces(const std::string& format, const Arguments& arguments, Runtime& runtime);

}  // namespace braid::jinja

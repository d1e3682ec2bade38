#pragma once

#include <string_view>

#include "tokenizer/jinja/value.h"

namespace braid::jinja {

// The functions every template can call (range, namespace, raise_exception ...); undefined for
// other names.
Value find_global(std::string_view name);

}  // namespace braid::jinja

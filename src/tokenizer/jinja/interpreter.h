#pragma once

#include <string>

#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/budget.h"
#include "tokenizer/jinja/value.h"

namespace braid::jinja {

// Runs a template over its variables and returns the text. Throws Error "origin:line: ..." for
// raise_exception() and everything else that goes wrong.
std::string render(const Program& program, const Dict& variables, const Limits& limits = {});

}  // namespace braid::jinja

#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/jinja/ast.h"

namespace braid::jinja {

// Parses a template, with jinja2's grammar and the loop-control and generation tags. Throws Error
// "origin:line: ..."; what jinja2 knows and this reader does not is called "unsupported".
std::shared_ptr<const Program> parse_template(std::string_view source, const std::string& origin);

}  // namespace braid::jinja

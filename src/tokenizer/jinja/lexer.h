#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/token.h"

namespace braid::jinja {

// Cuts a template into tokens with jinja2's white-space rules for trim_blocks and lstrip_blocks
// (both on) and keep_trailing_newline (off). Comments are dropped and raw blocks become data.
// Throws Error "origin:line: ..." for a template that cannot be cut.
std::vector<Token> tokenize_template(std::string_view source, const std::string& origin);

}  // namespace braid::jinja

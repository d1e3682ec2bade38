#pragma once

#include <optional>
#include <string>

namespace braid {

// Reads a line from the user, with editing and history on a terminal; plain lines otherwise.
// Nothing at the end of input.
std::optional<std::string> read_prompt_line(const char* prompt);

}  // namespace braid

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace braid {

// Text from a file, made fit for a one-line message: control characters and broken UTF-8 become
// \xNN, and long texts end in "...".
std::string printable(std::string_view text, size_t max_bytes = 120);

// "a, b, c", of at most `max_items`, then "and N more".
std::string join_some(const std::vector<std::string>& items, std::string_view separator = ", ",
                      size_t max_items = 20);

}  // namespace braid

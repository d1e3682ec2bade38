#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace braid {

// Parses JSON that users write. Throws Error saying what is wrong for text that is no JSON or no
// UTF-8, for an object that names a key twice, and for nesting deeper than 64.
nlohmann::json parse_strict_json(std::string_view text);

// On one line; bytes that are no UTF-8 become U+FFFD.
std::string dump_json(const nlohmann::json& json);
std::string dump_json(const nlohmann::ordered_json& json);

}  // namespace braid

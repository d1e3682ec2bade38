#pragma once

#include <filesystem>
#include <string_view>

namespace braid {

// Writes a file whole: under another name first, which it then takes. Throws Error naming the path.
void write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace braid

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace braid {

// The whole of a file, named pipe or, for "-", standard input. Throws Error naming it.
std::string read_input(const std::string& path);

// The lines of a text without their line breaks ("\n" or "\r\n"). A line break at the very end
// begins no further line.
std::vector<std::string_view> split_lines(std::string_view text);

// Only blanks and tabs, or nothing.
bool is_blank(std::string_view line);

// Writes to standard output at once. Throws Error if that fails, as on a full disk.
void write_out(std::string_view text);

// Throws Error naming the path.
void write_text_file(const std::string& path, const std::string& text);

}  // namespace braid

#include "apps/text_io.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "base/error.h"
#include "base/mapped_file.h"

namespace braid {

std::string read_input(const std::string& path) {
  if (path == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  const bool is_stream =
      std::filesystem::is_fifo(status) || std::filesystem::is_character_file(status);
  if (!is_stream) return read_file(path);
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw Error("{}: cannot open: {}", path, std::strerror(errno));
  return std::string(std::istreambuf_iterator<char>(stream), {});
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

void write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw Error("standard output: cannot write: {}", std::strerror(errno));
  }
}

void write_text_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw Error("{}: cannot write", path);
}

}  // namespace braid

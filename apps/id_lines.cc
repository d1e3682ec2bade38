#include "apps/id_lines.h"

#include <charconv>
#include <string>
#include <string_view>

#include "apps/text_io.h"
#include "base/error.h"
#include "checkpoint/printable.h"

namespace braid {
namespace {

std::vector<int32_t> parse_line(std::string_view line, int64_t vocab_size,
                                const std::string& where) {
  constexpr std::string_view kSeparators = " \t,\r[]";
  std::vector<int32_t> ids;
  for (size_t begin = 0;
       (begin = line.find_first_not_of(kSeparators, begin)) != std::string_view::npos;) {
    const size_t end = std::min(line.find_first_of(kSeparators, begin), line.size());
    const std::string_view word = line.substr(begin, end - begin);
    int64_t id = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || stop != word.data() + word.size()) {
      throw Error("{}: '{}' is no token id", where, printable(word, 40));
    }
    if (id < 0 || id >= vocab_size) {
      throw Error("{}: token id {} is outside the vocabulary of {}", where, id, vocab_size);
    }
    ids.push_back(static_cast<int32_t>(id));
    begin = end;
  }
  if (ids.empty()) throw Error("{}: the line holds no token ids", where);
  return ids;
}

}  // namespace

std::vector<std::vector<int32_t>> read_id_lines(const std::string& path, int64_t vocab_size) {
  const std::string text = read_input(path);
  std::vector<std::vector<int32_t>> lines;
  for (const std::string_view line : split_lines(text)) {
    lines.push_back(parse_line(line, vocab_size, fmt::format("{}:{}", path, lines.size() + 1)));
  }
  if (lines.empty()) throw Error("{}: the file holds no token ids", path);
  return lines;
}

}  // namespace braid

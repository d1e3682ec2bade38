#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace braid {

// Reads a text file ("-": standard input) of token ids, one sequence a line, separated by blanks or
// commas. Every line counts: an empty one is an Error, as is an id that is no number or outside [0,
// vocab_size); messages name file, line and what was found.
std::vector<std::vector<int32_t>> read_id_lines(const std::string& path, int64_t vocab_size);

}  // namespace braid

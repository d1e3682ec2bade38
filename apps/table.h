#pragma once

#include <string>
#include <vector>

namespace braid {

// Text in aligned columns: numbers (cells that begin with a digit) to the right, words to the left.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  void add(std::vector<std::string> row);  // as many cells as the header
  // Header, a rule, the rows; each line ends with a line break.
  std::string to_string() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// "1.34 GB", "566 MB", "12 kB", "96 B": decimal units, three digits.
std::string format_bytes(int64_t bytes);
// "25.2 B", "11.9 M": counts of parameters.
std::string format_count(double count);

}  // namespace braid

#include "apps/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/check.h"

namespace braid {
namespace {

std::string with_unit(double value, const std::vector<const char*>& units) {
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, decimals, units[unit]);
}

// Code points, which is columns for the texts printed here.
size_t width_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

}  // namespace

void Table::add(std::vector<std::string> row) {
  BRAID_CHECK(row.size() == rows_.front().size(), "a row of {} cells in a table of {} columns",
              row.size(), rows_.front().size());
  rows_.push_back(std::move(row));
}

std::string Table::to_string() const {
  std::vector<size_t> widths(rows_.front().size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (size_t i = 0; i < rows_[r].size(); ++i) {
      const std::string& cell = rows_[r][i];
      const std::string pad(widths[i] - width_of(cell), ' ');
      // A column is aligned as its first row of data is.
      const std::string& sample = rows_.size() > 1 ? rows_[1][i] : cell;
      const bool number = !sample.empty() && std::isdigit(static_cast<unsigned char>(sample[0]));
      line += (i == 0 ? "" : "  ") + (number ? pad + cell : cell + pad);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    if (r == 0) {
      for (size_t i = 0; i < widths.size(); ++i)
        text += (i == 0 ? "" : "  ") + std::string(widths[i], '-');
      text += "\n";
    }
  }
  return text;
}

std::string format_bytes(int64_t bytes) {
  return with_unit(static_cast<double>(bytes), {"B", "kB", "MB", "GB", "TB"});
}
std::string format_count(double count) { return with_unit(count, {"", "k", "M", "B", "T"}); }

}  // namespace braid

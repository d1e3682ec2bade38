#include "apps/byte_size.h"

#include <cctype>
#include <cmath>
#include <map>

#include "base/error.h"
#include "checkpoint/printable.h"

namespace braid {
namespace {

std::string lower(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c != ' ') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

}  // namespace

int64_t parse_byte_size(const std::string& text) {
  static const std::map<std::string, double> kUnits = {
      {"", 1},       {"b", 1},        {"k", 0x1p10},   {"kib", 0x1p10}, {"kb", 1e3},
      {"m", 0x1p20}, {"mib", 0x1p20}, {"mb", 1e6},     {"g", 0x1p30},   {"gib", 0x1p30},
      {"gb", 1e9},   {"t", 0x1p40},   {"tib", 0x1p40}, {"tb", 1e12}};
  const std::string compact = lower(text);
  const size_t end = compact.find_first_not_of("0123456789.");
  const std::string digits = compact.substr(0, end);
  const auto unit = kUnits.find(end == std::string::npos ? "" : compact.substr(end));
  const bool is_number = !digits.empty() && digits != "." &&
                         digits.find('.') == digits.rfind('.') && digits.size() <= 20;
  const double bytes = is_number && unit != kUnits.end() ? std::stod(digits) * unit->second : 0;
  if (!(bytes >= 1 && bytes < 9e18)) {
    throw UsageError("'{}' is no number of bytes; write 10GiB, 512MiB or 1000000", printable(text));
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace braid

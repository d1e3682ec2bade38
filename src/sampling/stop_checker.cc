#include "sampling/stop_checker.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace braid {
namespace {

std::vector<size_t> borders(std::string_view text) {
  std::vector<size_t> border(text.size(), 0);
  for (size_t i = 1; i < text.size(); ++i) {
    size_t length = border[i - 1];
    while (length > 0 && text[i] != text[length]) length = border[length - 1];
    border[i] = text[i] == text[length] ? length + 1 : 0;
  }
  return border;
}

}  // namespace

void StopChecker::Pattern::advance(char byte) {
  while (matched > 0 && text[matched] != byte) matched = border[matched - 1];
  if (text[matched] == byte) ++matched;
}

StopChecker::StopChecker(const StopConditions& conditions) : ids_(conditions.ids) {
  std::sort(ids_.begin(), ids_.end());
  for (const std::string& text : conditions.strings) {
    if (text.empty()) throw Error("a stop string is empty");
    patterns_.push_back({text, borders(text)});
  }
}

bool StopChecker::is_stop_id(int32_t token) const {
  return std::binary_search(ids_.begin(), ids_.end(), token);
}

std::string StopChecker::feed(std::string_view text) {
  if (stopped()) return {};
  for (const char byte : text) {
    held_.push_back(byte);
    for (size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& pattern = patterns_[i];
      pattern.advance(byte);
      if (pattern.matched == pattern.text.size() &&
          (!stopped() || pattern.text.size() > stop_string().size())) {
        matched_ = static_cast<int>(i);
      }
    }
    if (stopped()) {
      held_.resize(held_.size() - stop_string().size());
      return std::exchange(held_, {});
    }
  }
  size_t keep = 0;
  for (const Pattern& pattern : patterns_) keep = std::max(keep, pattern.matched);
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopChecker::finish() { return std::exchange(held_, {}); }

}  // namespace braid

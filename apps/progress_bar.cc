#include "apps/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace braid {

ProgressBar::ProgressBar() : shown_(isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  if (shown_) fmt::print(stderr, "\r\033[K");
}

void ProgressBar::show(int64_t done, int64_t total, double seconds_left, const std::string& what) {
  if (!shown_) return;
  fmt::print(stderr, "\r\033[K{}", progress_line(done, total, seconds_left, what));
  std::fflush(stderr);
}

std::string progress_line(int64_t done, int64_t total, double seconds_left,
                          const std::string& what) {
  constexpr int64_t kCells = 20;
  const int64_t filled = total > 0 ? std::clamp<int64_t>(kCells * done / total, 0, kCells) : 0;
  std::string line = "[" + std::string(static_cast<size_t>(filled), '#') +
                     std::string(static_cast<size_t>(kCells - filled), '.') +
                     fmt::format("] {}/{}", done, total);
  if (seconds_left >= 0) {
    const auto seconds = static_cast<int64_t>(seconds_left + 0.5);
    line += seconds >= 60 ? fmt::format(", {} min {} s left", seconds / 60, seconds % 60)
                          : fmt::format(", {} s left", seconds);
  }
  return line + ", " + what;
}

}  // namespace braid

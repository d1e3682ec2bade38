#pragma once

#include <cstdint>
#include <string>

namespace braid {

// A line on standard error that is rewritten in place, if that is a terminal; else nothing.
class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // seconds_left < 0: not known yet.
  void show(int64_t done, int64_t total, double seconds_left, const std::string& what);

 private:
  bool shown_;
};

// "[#####·····]  12/24, 1 min 20 s left, pp512"
std::string progress_line(int64_t done, int64_t total, double seconds_left,
                          const std::string& what);

}  // namespace braid

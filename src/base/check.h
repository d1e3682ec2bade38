#pragma once

#include <fmt/format.h>

#include <string>

namespace braid {

// Prints place, condition and message to stderr and aborts. Active in every build.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

}  // namespace braid

// States what the program itself guarantees: CHECK(rows > 0, "rows {}", rows). A failure is a bug
// in braid, never a consequence of input.
#define BRAID_CHECK(condition, ...)                                                         \
  do {                                                                                      \
    if (!(condition)) [[unlikely]] {                                                        \
      ::braid::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
    }                                                                                       \
  } while (false)

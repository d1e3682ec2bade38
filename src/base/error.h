#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace braid {

// Bad input or environment: a file, field, flag or device that cannot be used. The message is one
// line that names it and says what to do. Bugs are CHECK failures (base/check.h), never an Error.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}

  template <typename First, typename... Rest>
  Error(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest)
      : std::runtime_error(
            fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)) {}
};

// Bad arguments on the command line (exit code 2; every other Error exits with 1).
class UsageError : public Error {
 public:
  using Error::Error;
};

}  // namespace braid

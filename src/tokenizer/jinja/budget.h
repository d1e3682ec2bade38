#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/error.h"

namespace braid::jinja {

// A failure while a template runs. The interpreter adds the template's name and line and rethrows
// it as braid::Error.
class Failure : public std::runtime_error {
 public:
  explicit Failure(const std::string& message) : std::runtime_error(message) {}

  template <typename First, typename... Rest>
  Failure(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest)
      : std::runtime_error(
            fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)) {}
};

// What one rendering may use. Templates come from model files and are not trusted.
struct Limits {
  size_t output_bytes = size_t{64} << 20;
  size_t work =
      size_t{512} << 20;  // evaluated nodes (16 each), bytes copied, values made (32 each)
  int depth = 1200;       // nested evaluations, macro calls included
};

// Nesting of values (lists in lists ...) that a template or its input may build.
inline constexpr int kMaxValueDepth = 200;

// Counts work and nesting against the limits.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  const Limits& limits() const { return limits_; }

  void charge(size_t amount) {
    if (amount > limits_.work - used_) {
      throw Failure("the template needs more than the {} units of work that one rendering may use",
                    limits_.work);
    }
    used_ += amount;
  }
  void charge_values(size_t count) {
    if (count > limits_.work / 32) count = limits_.work / 32 + 1;
    charge(count * 32);
  }

  // Held while a nested evaluation runs.
  class Level {
   public:
    explicit Level(Budget& budget) : budget_(budget) {
      if (budget_.depth_ >= budget_.limits_.depth) {
        throw Failure("nesting or recursion is deeper than {} levels", budget_.limits_.depth);
      }
      ++budget_.depth_;
    }
    ~Level() { --budget_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Budget& budget_;
  };

 private:
  Limits limits_;
  size_t used_ = 0;
  int depth_ = 0;
};

}  // namespace braid::jinja

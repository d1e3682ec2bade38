#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct TextRange {
  size_t begin;  // bytes
  size_t end;
};

// A pattern in the dialect of published tokenizer files (Oniguruma, Ruby syntax). Thread-safe.
class Regex {
 public:
  // Throws Error with the reason when the pattern cannot be compiled.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // A regular expression that matches exactly this text.
  static Regex literal(std::string_view text);

  // All matches from left to right, not overlapping. text must be well-formed UTF-8. Throws Error
  // when a match takes too many steps.
  std::vector<TextRange> find_all(std::string_view text) const;

 private:
  struct Compiled;
  std::string literal_;  // searched directly when there is no compiled pattern
  std::unique_ptr<const Compiled> compiled_;

  Regex();
};

}  // namespace braid

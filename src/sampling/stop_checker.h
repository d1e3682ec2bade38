#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct StopConditions {
  std::vector<int32_t> ids;          // the union of all sources; repeats do no harm
  std::vector<std::string> strings;  // not empty ones
};

// Watches one reply for the end. Text is fed in pieces of any size and comes out unchanged up to
// the first stop string to be completed (of several completed by the same byte, the longest), which
// is itself cut off. Text that may yet become a stop string is held back. The output does not
// depend on how the text is split. If the pieces are whole UTF-8 characters, so is what comes out.
class StopChecker {
 public:
  // Throws Error if a stop string is empty.
  explicit StopChecker(const StopConditions& conditions);

  bool is_stop_id(int32_t token) const;

  // Returns the text that can be shown now. After a stop string all further text is dropped.
  std::string feed(std::string_view text);
  // The reply ends here: returns what was held back.
  std::string finish();

  bool stopped() const { return matched_ >= 0; }
  // The stop string that ended the reply, or empty.
  std::string_view stop_string() const {
    return stopped() ? std::string_view(patterns_[matched_].text) : std::string_view();
  }

 private:
  // A Knuth-Morris-Pratt automaton.
  struct Pattern {
    std::string text;
    std::vector<size_t> border;  // [i]: longest proper border of the first i + 1 bytes
    size_t matched = 0;          // longest prefix of `text` that ends the text so far
    void advance(char byte);
  };

  std::vector<int32_t> ids_;  // ascending
  std::vector<Pattern> patterns_;
  std::string held_;
  int matched_ = -1;  // index of the pattern that ended the reply
};

}  // namespace braid

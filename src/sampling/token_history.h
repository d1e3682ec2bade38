#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace braid {

// Which tokens a sequence has seen, for the penalties. Only needed if SamplingParams asks for them.
class TokenHistory {
 public:
  struct Entry {
    int32_t token = 0;
    int32_t output_count = 0;  // 0: in the prompt only
  };

  void add_prompt(std::span<const int32_t> tokens);
  void add_output(int32_t token);

  // One per distinct token.
  std::span<const Entry> entries() const { return entries_; }

 private:
  Entry& entry(int32_t token);

  std::vector<Entry> entries_;
  std::unordered_map<int32_t, size_t> index_;
};

}  // namespace braid

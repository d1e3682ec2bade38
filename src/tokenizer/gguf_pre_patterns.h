#pragma once

#include <string_view>
#include <vector>

namespace braid {

// Byte-level tokenizers by the names that GGUF files call them (tokenizer.ggml.pre).
struct GgufPrePattern {
  std::string_view name;
  std::vector<std::string_view> patterns;  // applied one after the other
  bool nfc = false;
  bool ignore_merges = false;  // a whole piece that is a token needs none
};
const std::vector<GgufPrePattern>& gguf_pre_patterns();

// The first name that stands for this regular expression alone; empty if there is none.
std::string_view gguf_pre_name(std::string_view regex);

}  // namespace braid

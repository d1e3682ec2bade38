#include "tokenizer/gguf_pre_patterns.h"

namespace braid {
namespace {

constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

// The patterns that go with tokenizer.ggml.pre (ggml-org/llama.cpp src/llama-vocab.cpp). Qwen's
// tokenizer.json also normalises to NFC, which the metadata does not say.
const std::vector<GgufPrePattern>& gguf_pre_patterns() {
  static const std::vector<GgufPrePattern> table = {
      {"qwen2", {kQwen2Pattern}, true},
      {"deepseek-r1-qwen", {kQwen2Pattern}, true},
      {"qwen35", {kQwen35Pattern}, true},
      {"llama-bpe", {kLlama3Pattern}, false, true},
      {"llama3", {kLlama3Pattern}, false, true},
      {"llama-v3", {kLlama3Pattern}, false, true},
      {"gpt-2", {kGpt2Pattern}},
      {"gpt2", {kGpt2Pattern}},
      {"smollm", {R"(\p{N})", kGpt2Pattern}},
      {"starcoder", {R"(\p{N})", kGpt2Pattern}},
      {"default",
       {R"([\p{P}\$\+<=>\^~\|]+)",
        R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))", R"(\p{N}+)",
        R"([0-9][0-9][0-9])"}},
  };
  return table;
}

std::string_view gguf_pre_name(std::string_view regex) {
  for (const GgufPrePattern& entry : gguf_pre_patterns()) {
    if (entry.patterns.size() == 1 && entry.patterns.front() == regex) return entry.name;
  }
  return {};
}

}  // namespace braid

#include "tokenizer/token_decoder.h"

#include <optional>

#include "base/error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/utf8.h"

namespace braid {
namespace {

constexpr size_t kMaxTokenBytes = size_t{1} << 24;

std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    if (c >= '0' && c <= '9') {
      value = value * 16 + (c - '0');
    } else if (c >= 'A' && c <= 'F') {
      value = value * 16 + (c - 'A' + 10);
    } else if (c >= 'a' && c <= 'f') {
      value = value * 16 + (c - 'a' + 10);
    } else {
      return std::nullopt;
    }
  }
  return static_cast<char>(value);
}

std::string_view strip(std::string_view text, const TokenDecoder::Strip& step) {
  for (size_t i = 0; i < step.start && !text.empty() && utf8_first(text) == step.content; ++i) {
    text.remove_prefix(utf8_length(text[0]));
  }
  std::string content;
  utf8_append(content, step.content);
  for (size_t i = 0; i < step.stop && text.ends_with(content); ++i) {
    text.remove_suffix(content.size());
  }
  return text;
}

}  // namespace

std::string TokenDecoder::bytes(std::string_view token, bool first, bool added) const {
  std::string text(token);
  for (const Step& step : steps_) {
    if (text.size() > kMaxTokenBytes) throw Error("a token decodes to {} bytes", text.size());
    if (const auto* replace = std::get_if<Replace>(&step)) {
      if (utf8_is_valid(text)) text = replace_all(text, replace->pattern, replace->content);
    } else if (std::holds_alternative<ByteFallback>(step)) {
      if (const auto byte = fallback_byte(text)) return std::string(1, *byte);
    } else if (std::holds_alternative<ByteLevel>(step)) {
      if (added) continue;
      if (auto bytes = byte_level_bytes(text)) text = std::move(*bytes);
    } else if (const auto* stripped = std::get_if<Strip>(&step)) {
      if (utf8_is_valid(text)) text = strip(text, *stripped);
    } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
      const bool dropped = first && metaspace->prepended;
      text = replace_all(text, Regex::literal(metaspace->replacement), dropped ? "" : " ");
    }
  }
  return text;
}

}  // namespace braid

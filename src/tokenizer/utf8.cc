#include "tokenizer/utf8.h"

namespace braid {

Utf8Step utf8_step(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Utf8Status::kValid, 1, lead};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Status::kInvalid, 1, kReplacementCodePoint};

  const int length = utf8_length(text[0]);
  // The second byte excludes overlong forms, surrogates and code points past U+10FFFF.
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;

  char32_t code_point = lead & (0xFF >> (length + 1));
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == text.size()) {
      return {Utf8Status::kIncomplete, i, kReplacementCodePoint};
    }
    if (byte(i) < low || byte(i) > high) return {Utf8Status::kInvalid, i, kReplacementCodePoint};
    low = 0x80;
    high = 0xBF;
    code_point = (code_point << 6) | (byte(i) & 0x3F);
  }
  return {Utf8Status::kValid, length, code_point};
}

bool utf8_is_valid(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (step.status != Utf8Status::kValid) return false;
    text.remove_prefix(step.length);
  }
  return true;
}

std::string utf8_repair(std::string_view text) {
  Utf8Repairer repairer;
  std::string repaired = repairer.push(text);
  repaired += repairer.flush();
  return repaired;
}

void utf8_append(std::string& text, char32_t c) {
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += static_cast<char>(0xC0 | (c >> 6));
    text += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    text += static_cast<char>(0xE0 | (c >> 12));
    text += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    text += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    text += static_cast<char>(0xF0 | (c >> 18));
    text += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    text += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    text += static_cast<char>(0x80 | (c & 0x3F));
  }
}

char32_t utf8_first(std::string_view text) { return utf8_step(text).code_point; }

char32_t utf8_last(std::string_view text) {
  size_t start = text.size() - 1;
  while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
  return utf8_step(text.substr(start)).code_point;
}

std::string Utf8Repairer::push(std::string_view bytes) {
  std::string joined;
  if (!pending_.empty()) {
    joined = std::move(pending_) + std::string(bytes);
    pending_.clear();
    bytes = joined;
  }
  std::string text;
  text.reserve(bytes.size());
  size_t done = 0;  // bytes[done, at) is well formed and not yet copied
  size_t at = 0;
  while (at < bytes.size()) {
    const Utf8Step step = utf8_step(bytes.substr(at));
    if (step.status != Utf8Status::kValid) {
      text += bytes.substr(done, at - done);
      if (step.status == Utf8Status::kIncomplete) {
        pending_ = bytes.substr(at);
        return text;
      }
      text += kReplacementUtf8;
      done = at + step.length;
    }
    at += step.length;
  }
  text += bytes.substr(done);
  return text;
}

std::string Utf8Repairer::flush() {
  if (pending_.empty()) return {};
  pending_.clear();
  return std::string(kReplacementUtf8);
}

}  // namespace braid

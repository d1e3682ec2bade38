#include "tokenizer/byte_level.h"

#include <array>

#include "tokenizer/utf8.h"

namespace braid {
namespace {

struct Alphabet {
  std::array<char32_t, 256> code_points;
  std::array<int, 0x144> bytes;  // by code point; -1: not in the alphabet

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      code_points[byte] = printable ? static_cast<char32_t>(byte) : next++;
      bytes[code_points[byte]] = byte;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

void append_byte_level(std::string& text, std::string_view bytes) {
  const Alphabet& table = alphabet();
  for (const char byte : bytes) {
    utf8_append(text, table.code_points[static_cast<unsigned char>(byte)]);
  }
}

std::optional<std::string> byte_level_bytes(std::string_view text) {
  const Alphabet& table = alphabet();
  std::string bytes;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (step.status != Utf8Status::kValid || step.code_point >= table.bytes.size()) {
      return std::nullopt;
    }
    const int byte = table.bytes[step.code_point];
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    text.remove_prefix(step.length);
  }
  return bytes;
}

}  // namespace braid

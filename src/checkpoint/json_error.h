#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "checkpoint/printable.h"

namespace braid {

// The text of a JSON library exception without its "[json.exception...]" tag, on one line.
inline std::string json_reason(const std::exception& error) {
  std::string_view text = error.what();
  if (const size_t tag = text.find("] "); text.starts_with("[") && tag != text.npos) {
    text.remove_prefix(tag + 2);
  }
  return printable(text, 240);
}

}  // namespace braid

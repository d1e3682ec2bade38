#include "checkpoint/gguf_cursor.h"

#include "checkpoint/printable.h"

namespace braid {

void GgufCursor::fail(size_t offset, std::string_view field, std::string_view message) const {
  throw Error("{}: byte {}: {}: {}", path_, offset, printable(field), message);
}

void GgufCursor::fail_short(std::string_view field, uint64_t needed) const {
  fail(offset_, field,
       fmt::format("needs {} bytes, but only {} are left; is the file cut short?", needed,
                   remaining()));
}

std::string_view GgufCursor::read_string(std::string_view field) {
  const size_t start = offset_;
  const auto length = read<uint64_t>(field);
  if (length > remaining()) {
    fail(start, field,
         fmt::format("a string of {} bytes, but only {} are left; is the file cut short?", length,
                     remaining()));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data() + offset_), length);
  offset_ += length;
  return text;
}

uint64_t GgufCursor::read_count(std::string_view field, uint64_t min_item_bytes) {
  const size_t start = offset_;
  const auto count = read<uint64_t>(field);
  if (count > remaining() / min_item_bytes) {
    fail(start, field,
         fmt::format("{} items cannot fit into the {} bytes that are left", count, remaining()));
  }
  return count;
}

}  // namespace braid

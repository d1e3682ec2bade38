#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace braid {

// Reads little-endian fields one after the other; a field that does not fit is an Error naming
// file, field and byte offset.
class GgufCursor {
 public:
  GgufCursor(std::span<const std::byte> bytes, const std::string& path)
      : bytes_(bytes), path_(path) {}

  size_t offset() const { return offset_; }
  size_t remaining() const { return bytes_.size() - offset_; }

  template <typename T>
  T read(std::string_view field) {
    if (remaining() < sizeof(T)) fail_short(field, sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + offset_, sizeof(T));
    offset_ += sizeof(T);
    return value;
  }
  // A 64-bit length and that many bytes.
  std::string_view read_string(std::string_view field);
  // A 64-bit count of items that take at least `min_item_bytes` each.
  uint64_t read_count(std::string_view field, uint64_t min_item_bytes);

  // An Error that places `message` at the field that starts at byte `offset`.
  [[noreturn]] void fail(size_t offset, std::string_view field, std::string_view message) const;

 private:
  [[noreturn]] void fail_short(std::string_view field, uint64_t needed) const;

  std::span<const std::byte> bytes_;
  const std::string& path_;
  size_t offset_ = 0;
};

}  // namespace braid

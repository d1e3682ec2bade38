#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace braid {

// A 64-bit check against damage by chance, not by intent. Data may come in pieces.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes);
  uint64_t value() const;

 private:
  void add_word(uint64_t word);

  uint64_t state_ = 0x9e3779b97f4a7c15u;
  uint64_t length_ = 0;
  uint64_t pending_ = 0;  // the bytes of a word begun
};

}  // namespace braid

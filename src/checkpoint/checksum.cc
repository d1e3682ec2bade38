#include "checkpoint/checksum.h"

#include <cstring>
#include <utility>

namespace braid {

void Checksum::add_word(uint64_t word) {
  state_ = (state_ ^ word) * 0xd6e8feb86659fd93u;
  state_ ^= state_ >> 32;
}

void Checksum::add(std::span<const std::byte> bytes) {
  size_t i = 0;
  for (; i < bytes.size() && length_ % 8 != 0; ++i, ++length_) {
    pending_ |= static_cast<uint64_t>(bytes[i]) << (8 * (length_ % 8));
    if (length_ % 8 == 7) add_word(std::exchange(pending_, 0));
  }
  for (; i + 8 <= bytes.size(); i += 8, length_ += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    add_word(word);
  }
  for (; i < bytes.size(); ++i, ++length_) {
    pending_ |= static_cast<uint64_t>(bytes[i]) << (8 * (length_ % 8));
  }
}

uint64_t Checksum::value() const {
  Checksum end = *this;
  end.add_word(pending_);
  end.add_word(length_);
  return end.state_;
}

}  // namespace braid

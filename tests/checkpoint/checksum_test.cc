#include "checkpoint/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "support/fresh_seed.h"

namespace braid {
namespace {

TEST(Checksum, PiecesMakeNoDifference) {
  testing::FreshRandom random;
  std::string text(1000, '\0');
  for (char& c : text) c = static_cast<char>(random.integer(0, 255));
  const auto bytes = std::as_bytes(std::span(text));
  Checksum whole;
  whole.add(bytes);
  for (int round = 0; round < 50; ++round) {
    Checksum parts;
    for (size_t at = 0; at < bytes.size();) {
      const auto size =
          std::min<size_t>(static_cast<size_t>(random.integer(0, 40)), bytes.size() - at);
      parts.add(bytes.subspan(at, size));
      at += size;
    }
    ASSERT_EQ(parts.value(), whole.value());
  }
  // Zeros at the end count.
  Checksum shorter, longer;
  const std::byte zeros[9] = {};
  shorter.add({zeros, 8});
  longer.add({zeros, 9});
  EXPECT_NE(shorter.value(), longer.value());
}

}  // namespace
}  // namespace braid

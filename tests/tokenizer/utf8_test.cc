#include "tokenizer/utf8.h"

#include <gtest/gtest.h>

#include <random>

namespace braid {
namespace {

TEST(Utf8, ReplacesEachMaximalIllFormedPart) {
  // The examples of the Unicode Standard, tables 3-8 to 3-11.
  const std::string bad = "\xEF\xBF\xBD";
  const auto times = [&](int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += bad;
    return text;
  };
  EXPECT_EQ(utf8_repair("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), times(8) + "A");
  EXPECT_EQ(utf8_repair("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), times(8) + "A");
  EXPECT_EQ(utf8_repair("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), times(5) + "A" + times(2) + "B");
  EXPECT_EQ(utf8_repair("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), times(4) + "A");
  EXPECT_EQ(utf8_repair("caf\xC3\xA9 \xF0\x9F\x98\x80"), "caf\xC3\xA9 \xF0\x9F\x98\x80");
}

TEST(Utf8, EveryCodePointSurvives) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    utf8_append(text, c);
    const Utf8Step step = utf8_step(text);
    ASSERT_EQ(step.status, Utf8Status::kValid) << std::hex << static_cast<uint32_t>(c);
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(static_cast<size_t>(step.length), text.size());
    ASSERT_EQ(utf8_length(text[0]), step.length);
    ASSERT_EQ(utf8_last("x" + text), c);
  }
}

TEST(Utf8, RepairInPiecesEqualsRepairOfTheWhole) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (size_t n = random() % 12; n > 0; --n) {
      if (random() % 2) {
        utf8_append(bytes, static_cast<char32_t>(random() % 0xD800));
      } else {
        bytes += static_cast<char>(random() % 256);
      }
    }
    Utf8Repairer repairer;
    std::string joined;
    for (size_t at = 0; at < bytes.size();) {
      const size_t n = 1 + random() % 3;
      const std::string piece = repairer.push(bytes.substr(at, n));
      EXPECT_TRUE(utf8_is_valid(piece));
      joined += piece;
      at += n;
    }
    joined += repairer.flush();
    EXPECT_EQ(joined, utf8_repair(bytes));
    EXPECT_TRUE(utf8_is_valid(joined));
  }
}

// U+FFFD comes as soon as the bytes cannot become a character any more, and not before.
TEST(Utf8, HoldsBackOnlyWhatMayStillBecomeACharacter) {
  Utf8Repairer repairer;
  EXPECT_EQ(repairer.push("\xE2"), "");
  EXPECT_EQ(repairer.push("\x82"), "");
  EXPECT_EQ(repairer.push("\xAC"), "\xE2\x82\xAC");
  EXPECT_EQ(repairer.push("\xE2\x82"), "");
  EXPECT_EQ(repairer.push("x"), "\xEF\xBF\xBDx");
  EXPECT_EQ(repairer.push("\xED"), "");
  EXPECT_EQ(repairer.push("\xA0"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(repairer.push("\xF0\x9F\x98"), "");
  EXPECT_EQ(repairer.flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(repairer.flush(), "");
}

}  // namespace
}  // namespace braid

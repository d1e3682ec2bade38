#include "checkpoint/printable.h"

#include <gtest/gtest.h>

namespace braid {
namespace {

TEST(Printable, KeepsText) { EXPECT_EQ(printable("blk.0.größe 😊"), "blk.0.größe 😊"); }

TEST(Printable, EscapesControlCharactersAndBrokenUtf8) {
  EXPECT_EQ(printable(std::string_view("a\n\0\x1b[31m\x7f", 9)), "a\\x0a\\x00\\x1b[31m\\x7f");
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");           // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // surrogate
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b"
            "2J");  // a control sequence of one rune
}

TEST(Printable, CutsLongText) {
  EXPECT_EQ(printable(std::string(1000, 'x'), 10), std::string(10, 'x') + "...");
}

TEST(JoinSome, SaysHowManyMore) {
  EXPECT_EQ(join_some({"a", "b"}), "a, b");
  EXPECT_EQ(join_some({"a", "b", "c", "d"}, "; ", 2), "a; b; and 2 more");
  EXPECT_EQ(join_some({}), "");
}

}  // namespace
}  // namespace braid

#include "sampling/stop_checker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "support/fresh_seed.h"

namespace braid {
namespace {

using testing::FreshRandom;

// The whole text at once: cut at the first end of a stop string, the longest of those that end
// there.
std::string reference(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

// What must be held back: the longest end of the text that begins a stop string.
size_t held_back(const std::string& text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t n = 1; n < stop.size() && n <= text.size(); ++n) {
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) longest = std::max(longest, n);
    }
  }
  return longest;
}

std::string run(const std::vector<std::string>& pieces, const std::vector<std::string>& stops) {
  StopChecker checker({.strings = stops});
  std::string shown;
  for (const std::string& piece : pieces) shown += checker.feed(piece);
  return shown + checker.finish();
}

TEST(StopChecker, StopIdsAreASet) {
  const StopChecker checker({.ids = {106, 1, 50, 1, 106}});
  for (const int32_t id : {1, 50, 106}) EXPECT_TRUE(checker.is_stop_id(id));
  for (const int32_t id : {0, 2, 49, 51, 212}) EXPECT_FALSE(checker.is_stop_id(id));
  EXPECT_FALSE(StopChecker({}).is_stop_id(0));
}

TEST(StopChecker, TextPassesAtOnceWithoutStopStrings) {
  StopChecker checker({});
  EXPECT_EQ(checker.feed("any text"), "any text");
  EXPECT_EQ(checker.finish(), "");
  EXPECT_FALSE(checker.stopped());
}

TEST(StopChecker, EverySplitOfTheAlphabetAndTheFox) {
  struct Case {
    std::string text;
    std::vector<std::string> stops;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {"ABCDEFGHIJKLM", {"DEFGHIJ"}, "ABC"},
      {"ABCDEFGHIKDEF", {"DEFGHIJ"}, "ABCDEFGHIKDEF"},  // almost, and again at the end
      {"quick brown fox", {"own fox"}, "quick br"},
      {"quick brown owl", {"own fox"}, "quick brown owl"},
      {"aabaabaaab", {"aabaaab"}, "aab"},  // overlaps itself
      {"abcd", {"bc", "abcd"}, "a"},       // the first to end wins
      {"xabc", {"bc", "abc", "c"}, "x"},   // the longest of those that end together
      {"STOP", {"STOP"}, ""},
      {"naïve 日本語。終", {"。終"}, "naïve 日本語"},
      {"naïve 日本誌", {"日本語"}, "naïve 日本誌"},
      {"👩‍👩‍👧 end", {"‍👧"}, "👩‍👩"},
  };
  for (const Case& c : cases) {
    ASSERT_EQ(reference(c.text, c.stops), c.expected);
    const size_t size = c.text.size();
    for (size_t i = 0; i <= size; ++i) {
      for (size_t j = i; j <= size; ++j) {
        EXPECT_EQ(run({c.text.substr(0, i), c.text.substr(i, j - i), c.text.substr(j)}, c.stops),
                  c.expected)
            << i << " " << j;
      }
    }
    std::vector<std::string> bytes;
    for (const char byte : c.text) bytes.emplace_back(1, byte);
    EXPECT_EQ(run(bytes, c.stops), c.expected);
  }
}

TEST(StopChecker, HoldsBackExactlyWhatMayBecomeAStopString) {
  FreshRandom random;
  for (int round = 0; round < 3000; ++round) {
    const auto random_text = [&](int64_t size) {
      std::string text;
      for (int64_t i = 0; i < size; ++i)
        text.push_back(static_cast<char>('a' + random.integer(0, 1)));
      return text;
    };
    std::vector<std::string> stops;
    for (int64_t i = random.integer(1, 3); i > 0; --i) {
      stops.push_back(random_text(random.integer(1, 7)));
    }
    const std::string text = random_text(random.integer(0, 30));
    const std::string expected = reference(text, stops);
    StopChecker checker({.strings = stops});
    std::string fed;
    std::string shown;
    while (fed.size() < text.size() && !checker.stopped()) {
      const std::string piece = text.substr(fed.size(), static_cast<size_t>(random.integer(0, 6)));
      fed += piece;
      shown += checker.feed(piece);
      if (!checker.stopped()) {
        ASSERT_EQ(shown.size() + held_back(fed, stops), fed.size()) << fed;
      }
    }
    ASSERT_EQ(checker.stopped(), expected != text);
    if (checker.stopped()) {
      ASSERT_EQ(text.compare(expected.size(), checker.stop_string().size(), checker.stop_string()),
                0);
      ASSERT_EQ(checker.feed(text), "");
    }
    ASSERT_EQ(shown + checker.finish(), expected) << text;
  }
}

TEST(StopChecker, WholeCharactersInWholeCharactersOut) {
  const std::vector<std::string> characters = {"é", "è", "日", "本", "😀", "😁", "a"};
  FreshRandom random;
  for (int round = 0; round < 500; ++round) {
    StopChecker checker({.strings = {"é日😀", "a😀", "😁😁"}});
    for (int i = 0; i < 20 && !checker.stopped(); ++i) {
      const std::string shown = checker.feed(random.pick(characters));
      if (shown.empty()) continue;
      // Neither begins within a character nor ends within one.
      EXPECT_NE(static_cast<unsigned char>(shown.front()) & 0xc0, 0x80);
      size_t last = shown.size() - 1;
      while ((static_cast<unsigned char>(shown[last]) & 0xc0) == 0x80) --last;
      const unsigned char lead = static_cast<unsigned char>(shown[last]);
      const size_t size = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
      EXPECT_EQ(shown.size() - last, size);
    }
  }
}

TEST(StopChecker, CopiesGoOnApart) {
  StopChecker first({.strings = {"end"}});
  first.feed("the en");
  StopChecker second = first;
  EXPECT_EQ(first.feed("d"), "");
  EXPECT_EQ(first.stop_string(), "end");
  EXPECT_EQ(second.feed("t"), "ent");
  EXPECT_FALSE(second.stopped());
}

TEST(StopChecker, AnEmptyStopStringIsRefused) {
  EXPECT_THROW(StopChecker({.strings = {"a", ""}}), Error);
}

}  // namespace
}  // namespace braid

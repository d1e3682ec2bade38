// The steps of the pipeline on their own: patterns, splits, added tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace braid {
namespace {

using testing::ElementsAre;

std::vector<std::string> split(const PreTokenizerPtr& step, const std::string& text) {
  TextPieces pieces;
  pieces.text = text;
  pieces.ranges = {{0, text.size()}};
  step->apply(pieces);
  std::vector<std::string> parts;
  for (const TextRange& range : pieces.ranges) {
    parts.push_back(pieces.text.substr(range.begin, range.end - range.begin));
  }
  return parts;
}

// The examples of the Python package's documentation for "the-final--countdown" split on "-".
TEST(Split, Behaviors) {
  const auto parts = [](SplitBehavior behavior) {
    return split(make_split(Regex::literal("-"), behavior, false), "the-final--countdown");
  };
  EXPECT_THAT(parts(SplitBehavior::kRemoved), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(parts(SplitBehavior::kIsolated),
              ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(parts(SplitBehavior::kMergedWithPrevious),
              ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(parts(SplitBehavior::kMergedWithNext),
              ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(parts(SplitBehavior::kContiguous),
              ElementsAre("the", "-", "final", "--", "countdown"));
}

TEST(Split, InvertKeepsTheMatches) {
  EXPECT_THAT(split(make_split(Regex("[a-z]+"), SplitBehavior::kRemoved, true), "ab12cd"),
              ElementsAre("ab", "cd"));
}

TEST(Regex, SpaceIsThePropertyWhiteSpace) {
  const Regex space(R"(\s)");
  for (char32_t c = 1; c < 0x3100; ++c) {
    std::string text;
    utf8_append(text, c);
    EXPECT_EQ(space.find_all(text).size(), is_whitespace(c) ? 1u : 0u) << static_cast<uint32_t>(c);
  }
  EXPECT_EQ(Regex(R"([^\s])").find_all(" a").size(), 1u);
  EXPECT_EQ(Regex(R"(\S)").find_all(" a").size(), 1u);
}

TEST(Regex, LookAheadLeavesTheLastBlankForTheNextWord) {
  const auto matches = Regex(R"(\s+(?!\S)|\s+|\w+)").find_all("a   b");
  ASSERT_EQ(matches.size(), 4u);
  EXPECT_EQ(matches[1].end - matches[1].begin, 2u);
}

TEST(Regex, EmptyMatchesAdvance) {
  EXPECT_EQ(Regex("x*").find_all("axxb").size(), 3u);  // "", "xx", "" at the end
  EXPECT_EQ(Regex("").find_all("\xC3\xA9").size(), 2u);
}

TEST(Regex, AMegabyteOfBlanksIsOneMatch) {
  const Regex pattern(R"(\s*[\r\n]+|\s+(?!\S)|\s+)");
  EXPECT_EQ(pattern.find_all(std::string(1 << 20, ' ')).size(), 1u);
}

TEST(Regex, UnusablePatternsAreErrors) {
  EXPECT_THROW(Regex("(a"), Error);
  EXPECT_THROW(Regex(std::string(100000, 'a')), Error);
  EXPECT_THROW(Regex("[a-z&&[aeiou]]"), Error);
}

TEST(ByteLevel, EveryByteRoundTrips) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  std::string text;
  append_byte_level(text, bytes);
  EXPECT_TRUE(utf8_is_valid(text));
  EXPECT_EQ(byte_level_bytes(text), bytes);
  EXPECT_EQ(byte_level_bytes("\xE2\x96\x81"), std::nullopt);
  std::string space;
  append_byte_level(space, " ");
  EXPECT_EQ(space, "\xC4\xA0");  // U+0120
}

std::vector<std::string> pieces(const AddedTokenMatcher& matcher, const std::string& text) {
  std::vector<std::string> out;
  for (const auto& piece : matcher.split(text, /*parse_special=*/true)) {
    out.push_back((piece.token ? "*" : "") + std::string(piece.text));
  }
  return out;
}

TEST(AddedTokens, LeftmostThenLongest) {
  AddedTokenMatcher matcher;
  for (const char* content : {"ab", "abc", "bcd", "\n", "\n\n"}) {
    matcher.add(content, {.id = 1, .content = content});
  }
  EXPECT_THAT(pieces(matcher, "xabcd"), ElementsAre("x", "*abc", "d"));
  EXPECT_THAT(pieces(matcher, "abbcd"), ElementsAre("*ab", "*bcd"));
  EXPECT_THAT(pieces(matcher, "\n\n\n"), ElementsAre("*\n\n", "*\n"));
  EXPECT_THAT(pieces(matcher, ""), ElementsAre());
}

TEST(AddedTokens, StripsAndWords) {
  AddedTokenMatcher matcher;
  matcher.add("L", {.id = 1, .content = "L", .lstrip = true});
  matcher.add("R", {.id = 2, .content = "R", .rstrip = true});
  matcher.add("W", {.id = 3, .content = "W", .single_word = true});
  EXPECT_THAT(pieces(matcher, "x \xE3\x80\x80L y"), ElementsAre("x", "* \xE3\x80\x80L", " y"));
  EXPECT_THAT(pieces(matcher, "x R \n y"), ElementsAre("x ", "*R \n ", "y"));
  EXPECT_THAT(pieces(matcher, "aW W-W"), ElementsAre("aW ", "*W", "-", "*W"));
}

TEST(AddedTokens, SpecialOnesStayTextWhenAskedSo) {
  AddedTokenMatcher matcher;
  matcher.add("<s>", {.id = 1, .content = "<s>", .special = true});
  matcher.add("<t>", {.id = 2, .content = "<t>"});
  const auto split = matcher.split("<s><t>", /*parse_special=*/false);
  ASSERT_EQ(split.size(), 2u);
  EXPECT_EQ(split[0].token, nullptr);
  EXPECT_EQ(split[1].token->id, 2);
}

}  // namespace
}  // namespace braid

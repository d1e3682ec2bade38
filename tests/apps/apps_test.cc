#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/byte_size.h"
#include "apps/sampling_options.h"
#include "apps/strict_json.h"
#include "apps/table.h"
#include "apps/text_io.h"
#include "base/error.h"
#include "support/temp_folder.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SplitLinesTest, EveryLineButNoneAfterTheLastBreak) {
  EXPECT_THAT(split_lines(""), ElementsAre());
  EXPECT_THAT(split_lines("\n"), ElementsAre(""));
  EXPECT_THAT(split_lines("a"), ElementsAre("a"));
  EXPECT_THAT(split_lines("a\r\n\nb\n"), ElementsAre("a", "", "b"));
  EXPECT_TRUE(is_blank(" \t"));
  EXPECT_FALSE(is_blank(" x"));
}

TEST(ByteSizeTest, UnitsAndErrors) {
  EXPECT_EQ(parse_byte_size("1"), 1);
  EXPECT_EQ(parse_byte_size("1000000"), 1000000);
  EXPECT_EQ(parse_byte_size("10GiB"), int64_t{10} << 30);
  EXPECT_EQ(parse_byte_size("512 MiB"), int64_t{512} << 20);
  EXPECT_EQ(parse_byte_size("2k"), 2048);
  EXPECT_EQ(parse_byte_size("1.5g"), int64_t{3} << 29);
  EXPECT_EQ(parse_byte_size("200MB"), 200000000);
  EXPECT_EQ(parse_byte_size("3TB"), 3000000000000);
  for (const char* text : {"", "0", "-1", "x", "10 x", "1.2.3M", ".", "GiB", "1e3", "0.1", "inf",
                           "99999999999999999999T"}) {
    EXPECT_THROW(parse_byte_size(text), UsageError) << text;
  }
}

TEST(ReadInputTest, FilesAndErrors) {
  testing::TempFolder folder;
  const std::string content("a\0b\n", 4);
  EXPECT_EQ(read_input(folder.write("x", content).string()), content);
  EXPECT_EQ(read_input("/dev/null"), "");
  EXPECT_THROW(read_input((folder.path() / "none").string()), Error);
  EXPECT_THROW(read_input(folder.path().string()), Error);
}

std::string json_error(std::string_view text) {
  try {
    parse_strict_json(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(StrictJsonTest, RefusesWhatOthersGuessAt) {
  EXPECT_EQ(json_error(R"({"a": {"b": 1}, "b": [{"a": 1}, {"a": 2}]})"), "");
  EXPECT_THAT(json_error(R"({"a": 1, "b": 2, "a": 3})"), HasSubstr("\"a\" is given twice"));
  EXPECT_THAT(json_error(R"({"x": [{"a": 1, "\u0061": 3}]})"), HasSubstr("\"a\" is given twice"));
  EXPECT_THAT(json_error("{\"a\": \"\xff\"}"), HasSubstr("UTF-8"));
  EXPECT_THAT(json_error("{} {}"), HasSubstr("not JSON"));
  EXPECT_THAT(json_error(""), HasSubstr("not JSON"));
  EXPECT_THAT(json_error("1e999"), HasSubstr("not JSON"));
  EXPECT_THAT(json_error(std::string(100000, '[')), HasSubstr("nested"));
  EXPECT_THAT(json_error("[\"a\nb"), ::testing::Not(HasSubstr("\n")));
}

TEST(TableTest, AlignsWordsLeftAndNumbersRight) {
  Table table({"name", "count"});
  table.add({"a", "5"});
  table.add({"émile", "12345"});
  EXPECT_EQ(table.to_string(),
            "name   count\n"
            "-----  -----\n"
            "a          5\n"
            "émile  12345\n");
}

TEST(TableTest, UnitsKeepThreeDigits) {
  EXPECT_EQ(format_bytes(96), "96 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1340000000), "1.34 GB");
  EXPECT_EQ(format_bytes(999600), "1.00 MB");
  EXPECT_EQ(format_count(25.23e9), "25.2 B");
}

TEST(SamplingOptionsTest, FilesDecideWhatTheCommandLineLeavesOpen) {
  const GenerationDefaults nothing;
  EXPECT_TRUE(SamplingOptions().params(nothing).greedy());
  GenerationDefaults files;
  files.temperature = 0.7f;
  files.top_k = 40;
  files.suppress_ids = {3};
  SamplingParams params = SamplingOptions().params(files);
  EXPECT_EQ(params.temperature, 0.7f);
  EXPECT_EQ(params.top_k, 40);
  EXPECT_THAT(params.suppress_ids, ElementsAre(3));
  SamplingOptions options;
  options.top_k = 5;
  EXPECT_EQ(options.params(files).top_k, 5);
  EXPECT_EQ(options.params(nothing).temperature, 1);
  options.greedy = true;
  EXPECT_TRUE(options.params(files).greedy());
  files.do_sample = false;
  EXPECT_TRUE(SamplingOptions().params(files).greedy());
  options = {};
  options.seed = -1;
  EXPECT_FALSE(options.params(files).seed);
  options.seed = 4;
  EXPECT_EQ(options.params(files).seed, 4u);
}

TEST(SamplingOptionsTest, StopIdsJoinAndEscapesAreUnderstood) {
  GenerationDefaults files;
  files.stop_ids = {1, 106};
  SamplingOptions options;
  options.stop_ids = {9};
  options.stop_strings = {R"(a\nb)", R"(\\n)", R"(\d)", R"(end\)"};
  EXPECT_THAT(options.stop(files).ids, ElementsAre(1, 106, 9));
  EXPECT_THAT(options.stop(files).strings, ElementsAre("a\nb", "\\n", "\\d", "end\\"));
  options.ignore_eos = true;
  EXPECT_THAT(options.stop(files).ids, ElementsAre(9));
}

}  // namespace
}  // namespace braid

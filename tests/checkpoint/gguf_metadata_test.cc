#include <gtest/gtest.h>

#include "checkpoint/expect_error.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_builder.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;
using testing::GgufBuilder;

GgufMetadata parse(const GgufBuilder& builder) {
  const std::string bytes = builder.build();
  return GgufFile::parse(std::as_bytes(std::span(bytes)), nullptr, "m.gguf").metadata;
}

TEST(GgufMetadata, IntegersOfAnyWidthConvert) {
  const GgufMetadata metadata = parse(GgufBuilder()
                                          .add("u8", uint8_t{200})
                                          .add("i8", int8_t{-3})
                                          .add("u16", uint16_t{60000})
                                          .add("i16", int16_t{-3})
                                          .add("u32", uint32_t{4000000000})
                                          .add("i32", int32_t{-3})
                                          .add("u64", uint64_t{1} << 40)
                                          .add("i64", -(int64_t{1} << 40))
                                          .add("list", std::vector<uint16_t>{1, 2, 65535}));
  EXPECT_EQ(metadata.integer("u8"), 200);
  EXPECT_EQ(metadata.integer("i8"), -3);
  EXPECT_EQ(metadata.integer("u16"), 60000);
  EXPECT_EQ(metadata.integer("i16"), -3);
  EXPECT_EQ(metadata.integer("u32"), 4000000000);
  EXPECT_EQ(metadata.integer("i32"), -3);
  EXPECT_EQ(metadata.integer("u64"), int64_t{1} << 40);
  EXPECT_EQ(metadata.integer("i64"), -(int64_t{1} << 40));
  EXPECT_THAT(*metadata.find_integers("list"), ElementsAre(1, 2, 65535));
  EXPECT_THAT(*metadata.find_integers("u8"), ElementsAre(200));
  EXPECT_EQ(metadata.number("u8"), 200.0);
}

TEST(GgufMetadata, OtherTypes) {
  const GgufMetadata metadata = parse(GgufBuilder()
                                          .add("f32", 0.5f)
                                          .add("f64", 1e-6)
                                          .add("flag", true)
                                          .add("text", "a")
                                          .add("texts", std::vector<std::string>{"a", "", "b"})
                                          .add("scores", std::vector<float>{0, -1.5f})
                                          .add("none", std::vector<uint32_t>{}));
  EXPECT_EQ(metadata.number("f32"), 0.5);
  EXPECT_EQ(metadata.number("f64"), 1e-6);
  EXPECT_EQ(metadata.find_boolean("flag"), true);
  EXPECT_EQ(metadata.string("text"), "a");
  EXPECT_THAT(*metadata.find_strings("texts"), ElementsAre("a", "", "b"));
  EXPECT_THAT(*metadata.find_numbers("scores"), ElementsAre(0, -1.5));
  EXPECT_TRUE(metadata.find_strings("none")->empty());
  EXPECT_TRUE(metadata.is_list("none"));
  EXPECT_FALSE(metadata.is_list("flag"));
  EXPECT_EQ(metadata.find_integer("absent"), std::nullopt);
  EXPECT_EQ(metadata.find_strings("absent"), std::nullopt);
  expect_error([&] { metadata.integer("absent"); }, {"m.gguf", "absent", "missing"});
}

TEST(GgufMetadata, WrongTypesNameTheKey) {
  const GgufMetadata metadata = parse(
      GgufBuilder().add("text", "a").add("number", 0.5f).add("list", std::vector<uint32_t>{1, 2}));
  expect_error([&] { metadata.integer("text"); },
               {"m.gguf: metadata text: expected an integer, found the string \"a\""});
  expect_error([&] { metadata.integer("number"); }, {"number", "an integer", "0.5"});
  expect_error([&] { metadata.integer("list"); }, {"list", "an integer", "a list of 2 integers"});
  expect_error([&] { metadata.number("text"); }, {"text", "a number"});
  expect_error([&] { metadata.string("list"); }, {"list", "a string"});
  expect_error([&] { metadata.find_boolean("number"); }, {"number", "a boolean"});
  expect_error([&] { metadata.find_strings("list"); }, {"list", "a list of strings"});
  expect_error([&] { metadata.find_numbers("text"); }, {"text", "a list of numbers"});
  expect_error([&] { metadata.find_integers("number"); }, {"number", "integer"});
}

// robustness B04
TEST(GgufMetadata, B04KeyValueHeadsPerLayer) {
  const GgufMetadata metadata = parse(GgufBuilder()
                                          .add("array", std::vector<uint32_t>{8, 8, 8, 8, 8, 2})
                                          .add("single", uint32_t{4}));
  EXPECT_THAT(*metadata.find_integers_per_layer("array", 6), ElementsAre(8, 8, 8, 8, 8, 2));
  EXPECT_THAT(*metadata.find_integers_per_layer("single", 3), ElementsAre(4, 4, 4));
  EXPECT_EQ(metadata.find_integers_per_layer("absent", 3), std::nullopt);
  expect_error([&] { metadata.find_integers_per_layer("array", 5); },
               {"m.gguf", "array", "a list of 6 values, but 5 are needed"});
}

TEST(GgufMetadata, B04WindowPatternOfBooleans) {
  const GgufMetadata metadata = parse(GgufBuilder()
                                          .add("pattern", std::vector<bool>{true, true, false})
                                          .add("numbers", std::vector<int32_t>{1, 0})
                                          .add("period", uint32_t{6})
                                          .add("all", true)
                                          .add("odd", std::vector<int32_t>{1, 2}));
  EXPECT_THAT(*metadata.find_booleans_per_layer("pattern", 3), ElementsAre(true, true, false));
  EXPECT_THAT(*metadata.find_booleans_per_layer("numbers", 2), ElementsAre(true, false));
  EXPECT_THAT(*metadata.find_booleans_per_layer("all", 2), ElementsAre(true, true));
  expect_error([&] { metadata.find_booleans_per_layer("pattern", 4); },
               {"pattern", "4 are needed"});
  expect_error([&] { metadata.find_booleans_per_layer("period", 4); }, {"period", "booleans", "6"});
  expect_error([&] { metadata.find_booleans_per_layer("odd", 2); }, {"odd", "0 or 1", "2"});
}

}  // namespace
}  // namespace braid

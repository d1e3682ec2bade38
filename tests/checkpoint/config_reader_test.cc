#include "checkpoint/config_reader.h"

#include <gtest/gtest.h>

#include "checkpoint/expect_error.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;

ConfigReader sample() {
  return ConfigReader(R"({
    "hidden_size": 640, "eps": 1e-6, "tied": true, "name": "x", "nothing": null,
    "eos": [1, 106, 50], "single": 7, "types": ["a", "b"], "huge": 18446744073709551615,
    "text_config": {"layers": 4, "rope": {"theta": 10000, "factor": "8"}},
    "items": [{"name": "p"}, {"name": 3}], "mixed": [1, "two"], "half": 0.5})",
                      "config.json");
}

TEST(ConfigReader, ReadsFields) {
  const ConfigReader reader = sample();
  EXPECT_EQ(reader.integer("hidden_size"), 640);
  EXPECT_EQ(reader.number("eps"), 1e-6);
  EXPECT_EQ(reader.number("hidden_size"), 640);
  EXPECT_EQ(reader.find_boolean("tied"), true);
  EXPECT_EQ(reader.string("name"), "x");
  EXPECT_THAT(*reader.find_integers("eos"), ElementsAre(1, 106, 50));
  EXPECT_THAT(*reader.find_integers("single"), ElementsAre(7));
  EXPECT_THAT(*reader.find_strings("types"), ElementsAre("a", "b"));
  EXPECT_EQ(reader.find_object("text_config")->find_object("rope")->integer("theta"), 10000);
  EXPECT_THAT(reader.find_object("text_config")->keys(), ElementsAre("layers", "rope"));
}

TEST(ConfigReader, AbsentAndNullAreTheSame) {
  const ConfigReader reader = sample();
  for (const char* key : {"nothing", "absent"}) {
    EXPECT_FALSE(reader.has(key));
    EXPECT_EQ(reader.find_integer(key), std::nullopt);
    EXPECT_EQ(reader.find_number(key), std::nullopt);
    EXPECT_EQ(reader.find_boolean(key), std::nullopt);
    EXPECT_EQ(reader.find_string(key), std::nullopt);
    EXPECT_EQ(reader.find_integers(key), std::nullopt);
    EXPECT_EQ(reader.find_strings(key), std::nullopt);
    EXPECT_FALSE(reader.find_object(key).has_value());
    EXPECT_FALSE(reader.find_objects(key).has_value());
    expect_error([&] { reader.integer(key); }, {"config.json: ", key, "missing"});
  }
}

TEST(ConfigReader, WrongTypesNameFileAndPath) {
  const ConfigReader reader = sample();
  expect_error([&] { reader.integer("name"); },
               {"config.json: name: expected an integer, found the string \"x\""});
  expect_error([&] { reader.integer("half"); }, {"half", "an integer", "0.5"});
  expect_error([&] { reader.integer("tied"); }, {"tied", "an integer", "true"});
  expect_error([&] { reader.integer("huge"); }, {"huge", "18446744073709551615"});
  expect_error([&] { reader.find_boolean("single"); }, {"single", "true or false", "7"});
  expect_error([&] { reader.find_number("eos"); }, {"eos", "a number", "a list"});
  expect_error([&] { reader.find_string("text_config"); }, {"text_config", "an object"});
  expect_error([&] { reader.find_object("eos"); }, {"eos", "an object", "a list"});
  expect_error([&] { reader.find_integers("mixed"); }, {"mixed", "integers", "\"two\""});
  expect_error([&] { reader.find_strings("mixed"); }, {"mixed", "strings", "1"});
  expect_error([&] { reader.find_object("text_config")->find_object("rope")->number("factor"); },
               {"config.json: text_config.rope.factor: expected a number"});
  expect_error([&] { reader.find_objects("items")->at(1).string("name"); }, {"items[1].name"});
}

TEST(ConfigReader, RefusesWhatIsNoJsonObject) {
  const auto open = [](std::string_view text) {
    return [text] { ConfigReader(text, "config.json"); };
  };
  expect_error(open(""), {"config.json", "not valid JSON"});
  expect_error(open("[1]"), {"config.json", "a list"});
  expect_error(open("{\"a\": 1"), {"config.json", "line 1, column 8"});
  expect_error(open("{\n\"a\": \x01}"), {"config.json", "line 2"});
  expect_error(open("{\"a\": \"\xff\"}"), {"config.json", "UTF-8"});
  expect_error(open("{\"a\": 1e999}"), {"config.json"});
  expect_error(open("{} {}"), {"config.json"});
}

TEST(ConfigReader, BoundsNesting) {
  const std::string open = "{\"a\":" + std::string(1'000'000, '[');
  expect_error([&] { ConfigReader(open, "config.json"); }, {"config.json", "nested"});
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  expect_error([&] { ConfigReader(objects, "config.json"); }, {"config.json", "nested"});
}

TEST(ConfigReader, ObjectsOutliveTheirRoot) {
  std::optional<ConfigReader> inner;
  { inner = sample().find_object("text_config"); }
  EXPECT_EQ(inner->integer("layers"), 4);
}

}  // namespace
}  // namespace braid

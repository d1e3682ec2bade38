#include "checkpoint/weight_map.h"

#include <gtest/gtest.h>

#include "checkpoint/expect_error.h"

namespace braid {
namespace {

using testing::expect_error;

WeightMap sample() {
  WeightMap map;
  map.add({.name = "model.a", .file = "m-1"});
  map.add({.name = "model.b", .file = "m-2"});
  return map;
}

TEST(WeightMap, RenamesAndRemembersTheFilesName) {
  WeightMap map = sample();
  map.rename(
      [](std::string_view name) { return name == "model.a" ? std::string("a") : std::string(); });
  ASSERT_NE(map.find("a"), nullptr);
  EXPECT_EQ(map.find("a")->file_name, "model.a");
  EXPECT_EQ(map.find("model.a"), nullptr);
  ASSERT_NE(map.find("model.b"), nullptr);
  EXPECT_EQ(map.find("model.b")->file_name, "");
  map.rename([](std::string_view name) { return "x." + std::string(name); });
  EXPECT_EQ(map.find("x.a")->file_name, "model.a");
}

TEST(WeightMap, ClashesNameBothFiles) {
  WeightMap map = sample();
  expect_error([&] { map.add({.name = "model.a", .file = "m-3"}); }, {"model.a", "m-1", "m-3"});
  expect_error([&] { map.rename([](std::string_view) { return std::string("same"); }); },
               {"same", "model.a of m-1", "model.b of m-2"});
}

}  // namespace
}  // namespace braid

#include <gtest/gtest.h>

#include "checkpoint/expect_error.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_builder.h"
#include "support/temp_folder.h"

namespace braid {
namespace {

using testing::expect_error;
using testing::SafetensorsBuilder;
using testing::TempFolder;

constexpr const char* kIndex = "model.safetensors.index.json";

std::string one_tensor(std::string_view name, float value) {
  return SafetensorsBuilder().add_f32(name, {1}, {value}).build();
}

// Four shards of one tensor each, with their index.
void write_set(const TempFolder& folder) {
  std::string map;
  for (int i = 1; i <= 4; ++i) {
    const std::string shard = "model-0000" + std::to_string(i) + "-of-00004.safetensors";
    const std::string name = "t" + std::to_string(i);
    folder.write(shard, one_tensor(name, static_cast<float>(i)));
    map += (i > 1 ? ",\"" : "\"") + name + "\":\"" + shard + "\"";
  }
  folder.write(kIndex, R"({"metadata":{"total_size":16},"weight_map":{)" + map + "}}");
}

void read(const TempFolder& folder) { read_safetensors_folder(folder.path()); }

TEST(SafetensorsSet, ReadsSingleFile) {
  const TempFolder folder;
  folder.write("model.safetensors", one_tensor("w", 2));
  const WeightMap map = read_safetensors_folder(folder.path());
  EXPECT_EQ(map.size(), 1u);
  EXPECT_NE(map.find("w"), nullptr);
  EXPECT_EQ(map.origin(), folder.path().string());
}

TEST(SafetensorsSet, ReadsShards) {
  const TempFolder folder;
  write_set(folder);
  const WeightMap map = read_safetensors_folder(folder.path());
  EXPECT_EQ(map.size(), 4u);
  float value;
  std::memcpy(&value, map.find("t3")->weight.data, sizeof(value));
  EXPECT_EQ(value, 3);
  EXPECT_THAT(map.find("t3")->file, ::testing::HasSubstr("model-00003-of-00004.safetensors"));
}

// robustness B03
TEST(SafetensorsSet, B03aMissingShardIsNamed) {
  const TempFolder folder;
  write_set(folder);
  std::filesystem::remove(folder.path() / "model-00003-of-00004.safetensors");
  expect_error([&] { read(folder); },
               {kIndex, "1 of 4 files missing", "model-00003-of-00004.safetensors"});
}

TEST(SafetensorsSet, B03bShardWithoutAListedTensorIsNamed) {
  const TempFolder folder;
  write_set(folder);
  folder.write("model-00002-of-00004.safetensors", one_tensor("other", 0));
  expect_error([&] { read(folder); },
               {kIndex, "t2 is missing from model-00002-of-00004.safetensors",
                "other of model-00002-of-00004.safetensors is not listed"});
}

TEST(SafetensorsSet, TensorInTheWrongShardIsNamed) {
  const TempFolder folder;
  write_set(folder);
  folder.write("model-00002-of-00004.safetensors",
               SafetensorsBuilder().add_f32("t2", {1}, {0}).add_f32("t1", {1}, {0}).build());
  expect_error([&] { read(folder); },
               {"t1 is in model-00002-of-00004.safetensors but listed in model-00001"});
}

TEST(SafetensorsSet, SingleFileWinsOverAnIndexThatDoesNotNameIt) {
  const TempFolder folder;
  write_set(folder);
  folder.write("model.safetensors", one_tensor("w", 2));
  EXPECT_EQ(read_safetensors_folder(folder.path()).size(), 1u);
  folder.write("extra.safetensors", one_tensor("x", 2));
  folder.write(kIndex, R"({"weight_map":{"w":"model.safetensors","x":"extra.safetensors"}})");
  EXPECT_EQ(read_safetensors_folder(folder.path()).size(), 2u);
}

TEST(SafetensorsSet, IndexMustStayWithinItsFolder) {
  const TempFolder folder;
  for (const char* shard :
       {"../model.safetensors", "/etc/passwd", "..", "", "a\\\\b", "a\\u0000b"}) {
    folder.write(kIndex, R"({"weight_map":{"w":")" + std::string(shard) + "\"}}");
    expect_error([&] { read(folder); }, {kIndex, "weight_map.w", "plain file name"});
  }
}

TEST(SafetensorsSet, BrokenIndex) {
  const TempFolder folder;
  folder.write(kIndex, "{}");
  expect_error([&] { read(folder); }, {kIndex, "weight_map", "missing"});
  folder.write(kIndex, R"({"weight_map":{"w":3}})");
  expect_error([&] { read(folder); }, {kIndex, "weight_map.w", "a string"});
  folder.write(kIndex, "{");
  expect_error([&] { read(folder); }, {kIndex, "JSON"});
}

TEST(SafetensorsSet, WithoutWeightsSaysWhatToDo) {
  const TempFolder folder;
  expect_error([&] { read(folder); }, {folder.path().string(), "no weights"});
  folder.write("pytorch_model.bin", "");
  expect_error([&] { read(folder); }, {"pytorch_model.bin", "safe_serialization"});
  folder.write("m.gguf", "");
  expect_error([&] { read(folder); }, {"m.gguf", "its own path"});
  folder.write("model-00001-of-00002.safetensors", "");
  expect_error([&] { read(folder); }, {"model-00001-of-00002.safetensors", kIndex});
}

}  // namespace
}  // namespace braid

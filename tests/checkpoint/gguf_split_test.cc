#include <gtest/gtest.h>

#include "checkpoint/expect_error.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_builder.h"
#include "support/temp_folder.h"

namespace braid {
namespace {

using testing::expect_error;
using testing::GgufBuilder;
using testing::TempFolder;

std::string part_name(int number) { return "m-0000" + std::to_string(number) + "-of-00003.gguf"; }

GgufBuilder part(uint16_t number, const std::string& tensor, uint16_t count = 3) {
  GgufBuilder builder;
  if (number == 0) builder.add("general.architecture", "gemma3");
  builder.add("split.no", number).add("split.count", count).add("split.tensors.count", int32_t{3});
  builder.tensor_f32(tensor, {1}, {static_cast<float>(number)});
  return builder;
}

void write_set(const TempFolder& folder) {
  for (int i = 0; i < 3; ++i) {
    folder.write(part_name(i + 1), part(static_cast<uint16_t>(i), "t" + std::to_string(i)).build());
  }
}

TEST(GgufSplit, OpensFromAnyPart) {
  const TempFolder folder;
  write_set(folder);
  for (int i = 1; i <= 3; ++i) {
    const auto file = GgufFile::open(folder.path() / part_name(i));
    EXPECT_EQ(file->metadata.string("general.architecture"), "gemma3");
    ASSERT_EQ(file->tensors.size(), 3u);
    EXPECT_EQ(file->tensors[2].name, "t2");
    float value;
    std::memcpy(&value, file->tensors[2].weight.data, sizeof(value));
    EXPECT_EQ(value, 2);
  }
}

TEST(GgufSplit, MissingPartsAreNamed) {
  const TempFolder folder;
  write_set(folder);
  std::filesystem::remove(folder.path() / part_name(1));
  std::filesystem::remove(folder.path() / part_name(3));
  expect_error([&] { GgufFile::open(folder.path() / part_name(2)); },
               {"2 of 3 parts", part_name(1) + ", " + part_name(3)});
}

TEST(GgufSplit, PartsMustBelongTogether) {
  const TempFolder folder;
  const auto open = [&] { GgufFile::open(folder.path() / part_name(1)); };
  write_set(folder);
  folder.write(part_name(2), part(2, "t1").build());
  expect_error(open, {part_name(2), "split.no", "2"});
  folder.write(part_name(2), part(1, "t1", 4).build());
  expect_error(open, {part_name(2), "split.count", "4"});
  folder.write(part_name(2), part(1, "t0").build());
  expect_error(open, {part_name(2), "tensor t0 is also in", part_name(1)});
  folder.write(part_name(2), GgufBuilder().build());
  expect_error(open, {part_name(2), "split.count", "missing"});
  folder.write(part_name(2), "");
  expect_error(open, {part_name(2), "not a GGUF"});
  folder.write(part_name(2), part(1, "t1").tensor_f32("extra", {1}, {0}).build());
  expect_error(open, {part_name(1), "split.tensors.count", "4"});
}

TEST(GgufSplit, ARenamedPartIsRefused) {
  const TempFolder folder;
  write_set(folder);
  std::filesystem::rename(folder.path() / part_name(1), folder.path() / "model.gguf");
  expect_error([&] { GgufFile::open(folder.path() / "model.gguf"); },
               {"model.gguf", "00001-of-00003"});
}

TEST(GgufSplit, AWholeFileMayBeNamedLikeAPart) {
  const TempFolder folder;
  folder.write(part_name(1), GgufBuilder().tensor_f32("w", {1}, {1}).build());
  EXPECT_EQ(GgufFile::open(folder.path() / part_name(1))->tensors.size(), 1u);
  folder.write("one.gguf", GgufBuilder().add("split.count", uint16_t{1}).build());
  EXPECT_TRUE(GgufFile::open(folder.path() / "one.gguf")->tensors.empty());
}

}  // namespace
}  // namespace braid

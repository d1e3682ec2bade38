#include "checkpoint/safetensors_writer.h"

#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "checkpoint/expect_error.h"
#include "checkpoint/safetensors.h"
#include "support/temp_folder.h"
#include "tensor/tensor.h"

namespace braid {
namespace {

using testing::expect_error;
using testing::TempFolder;

size_t num_files(const TempFolder& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder.path()), {}));
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const TempFolder folder;
  const auto path = folder.path() / "out.safetensors";
  Tensor logits(DType::kF32, {3, 4});
  for (int i = 0; i < 12; ++i) logits.data<float>()[i] = static_cast<float>(i) / 3;
  const std::vector<uint8_t> flags = {1, 2, 3};
  {
    SafetensorsWriter writer(path,
                             {{"flags", DType::kU8, {3}},
                              {"logits", DType::kF32, {3, 4}},
                              {"ids \"quoted\"", DType::kI64, {1}},
                              {"none", DType::kF32, {0}}},
                             {{"format", "pt"}});
    writer.write("logits", logits.view().rows(0, 1));
    writer.write("flags", std::as_bytes(std::span(flags)));
    writer.write("logits", logits.view().rows(1, 2));
    const int64_t id = 7;
    writer.write("ids \"quoted\"", std::as_bytes(std::span(&id, 1)));
    EXPECT_FALSE(std::filesystem::exists(path));
    writer.finish();
  }
  EXPECT_EQ(num_files(folder), 1u);
  WeightMap map;
  for (StoredTensor& tensor : read_safetensors(path)) map.add(std::move(tensor));
  ASSERT_EQ(map.size(), 4u);
  const Weight& read = map.find("logits")->weight;
  EXPECT_EQ(read.shape, (Shape{3, 4}));
  EXPECT_EQ(std::memcmp(read.data, logits.data<float>(), 48), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(read.data) % alignof(float), 0u);
  EXPECT_EQ(map.find("ids \"quoted\"")->dtype_name, "I64");
  EXPECT_EQ(map.find("flags")->stored_bytes, 3);
}

TEST(SafetensorsWriter, LeavesNothingUnlessFinished) {
  const TempFolder folder;
  const auto path = folder.path() / "out.safetensors";
  { SafetensorsWriter writer(path, {{"x", DType::kF32, {4}}}); }
  EXPECT_EQ(num_files(folder), 0u);
  expect_error([&] { SafetensorsWriter(folder.path() / "no" / "x.safetensors", {}); },
               {"x.safetensors", "cannot create"});
}

TEST(SafetensorsWriter, ReplacesAnOldFile) {
  const TempFolder folder;
  const auto path = folder.write("out.safetensors", "old");
  SafetensorsWriter writer(path, {});
  EXPECT_EQ(read_file(path), "old");
  writer.finish();
  EXPECT_TRUE(read_safetensors(path).empty());
}

}  // namespace
}  // namespace braid

#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <functional>

#include "checkpoint/expect_error.h"
#include "checkpoint/safetensors_builder.h"
#include "support/temp_folder.h"

namespace braid {
namespace {

using testing::expect_error;
using testing::safetensors_bytes;
using testing::SafetensorsBuilder;
using testing::TempFolder;

std::vector<StoredTensor> parse(const std::string& bytes) {
  // An exact copy on the heap: reads past its end are seen by the address sanitizer.
  const auto copy = std::make_shared<std::vector<char>>(bytes.begin(), bytes.end());
  return parse_safetensors(std::as_bytes(std::span(*copy)), copy, "m.safetensors");
}
std::function<void()> parsing(const std::string& header, const std::string& data = "") {
  return [=] { parse(safetensors_bytes(header, data)); };
}

const std::string kValid = SafetensorsBuilder()
                               .add_f32("a", {2, 3}, {1, 2, 3, 4, 5, 6})
                               .add("b", "BF16", {2}, std::string("\x80\x3f\x00\x40", 4))
                               .build();

TEST(Safetensors, ReadsTensors) {
  const std::vector<StoredTensor> tensors = parse(kValid);
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].file, "m.safetensors");
  EXPECT_EQ(tensors[0].dtype_name, "F32");
  EXPECT_EQ(tensors[0].stored_bytes, 24);
  EXPECT_EQ(tensors[0].weight.shape, (Shape{2, 3}));
  EXPECT_EQ(tensors[1].weight.format, &quant_format(FormatId::kBF16));
  float values[2];
  dequantize(*tensors[1].weight.format, tensors[1].weight.data, 2, values);
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], 2);
}

TEST(Safetensors, MappedFileOutlivesTheReader) {
  const TempFolder folder;
  const auto path = folder.write("m.safetensors", kValid);
  const Weight weight = read_safetensors(path)[0].weight;
  float values[6];
  dequantize(*weight.format, weight.data, 6, values);
  EXPECT_EQ(values[5], 6);
  expect_error([&] { read_safetensors(folder.path() / "none.safetensors"); }, {"none.safetensors"});
}

TEST(Safetensors, AcceptsMetadataPaddingScalarsAndUnknownFields) {
  const auto tensors = parse(safetensors_bytes(
      R"({"__metadata__":{"format":"pt"},"s":{"dtype":"F32","shape":[],"data_offsets":[0,4],)"
      R"("note":{"deep":[1,{"dtype":2}]}}}    )",
      std::string(4, '\0')));
  ASSERT_EQ(tensors.size(), 1u);
  EXPECT_EQ(tensors[0].weight.shape, Shape{1});
  EXPECT_TRUE(parse(safetensors_bytes("{}", "")).empty());
}

TEST(Safetensors, TypesNoKernelReadsHaveNoFormat) {
  const auto tensors = parse(SafetensorsBuilder()
                                 .add("i", "I64", {1}, std::string(8, '\0'))
                                 .add("f4", "F4", {3, 2}, std::string(3, '\0'))
                                 .add("conv", "BF16", {1, 2, 1, 2, 1}, std::string(8, '\0'))
                                 .build());
  for (const StoredTensor& tensor : tensors) EXPECT_EQ(tensor.weight.format, nullptr);
  EXPECT_EQ(tensors[1].weight.shape, (Shape{3, 2}));
  EXPECT_EQ(tensors[2].weight.shape, Shape{4});
  EXPECT_EQ(tensors[2].dtype_name, "BF16 of 5 dimensions");
}

// robustness B02
TEST(Safetensors, B02aShapeNeedsMoreThanTheOffsetsCover) {
  const std::string bytes =
      safetensors_bytes(R"({"weight":{"dtype":"F64","shape":[4],"data_offsets":[0,16]}}       )",
                        std::string(16, '\0'));
  ASSERT_EQ(bytes.size(), 91u);
  expect_error([&] { parse(bytes); }, {"m.safetensors", "weight", "32 bytes", "[0, 16]"});
}

TEST(Safetensors, B02bLargeShapeOverFourBytes) {
  expect_error(parsing(R"({"w":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}})",
                       std::string(4, '\0')),
               {"m.safetensors", "tensor w", "[1000, 1000]", "4000000 bytes"});
}

TEST(Safetensors, B02cOverlap) {
  expect_error(parsing(R"({"v":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                       R"("w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                       std::string(4, '\0')),
               {"m.safetensors", "v and w overlap"});
  expect_error(parsing(R"({"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("w":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                       std::string(12, '\0')),
               {"m.safetensors", "v and w overlap at byte 4"});
}

TEST(Safetensors, B02dNameTwice) {
  expect_error(parsing(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                       R"("w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                       std::string(8, '\0')),
               {"m.safetensors", "tensor w occurs twice"});
}

TEST(Safetensors, B02eCutShort) {
  const auto cut = [](size_t size) { return [size] { parse(kValid.substr(0, size)); }; };
  expect_error(cut(kValid.size() - 1), {"m.safetensors", "tensor b", "cut short"});
  expect_error(cut(kValid.size() / 2), {"m.safetensors", "cut short"});
  expect_error(cut(20), {"m.safetensors", "header size", "cut short"});
  for (size_t size = 0; size < kValid.size(); ++size) {
    SCOPED_TRACE(size);
    expect_error(cut(size), {"m.safetensors"});
  }
}

TEST(Safetensors, B02fEmptyTensorIsAccepted) {
  const auto tensors = parse(SafetensorsBuilder()
                                 .add("w", "F32", {1}, std::string(4, '\0'))
                                 .add("empty", "F32", {0}, "")
                                 .add("flat", "F32", {3, 0, 1152921504606846976}, "")
                                 .build());
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[1].weight.shape, Shape{0});
  EXPECT_EQ(tensors[1].weight.format, nullptr);
}

TEST(Safetensors, RefusesHolesAndTrailingBytes) {
  expect_error(parsing(R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", "abc"),
               {"m.safetensors", "0 to 1", "tensor w"});
  expect_error(parsing(R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "abc"),
               {"m.safetensors", "1 bytes after the last tensor"});
}

TEST(Safetensors, RefusesSizesThatOverflow) {
  // 2^32 * 2^32 elements are 0 modulo 2^64.
  expect_error(
      parsing(R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})"),
      {"tensor w", "too large"});
  expect_error(
      parsing(R"({"w":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})"),
      {"tensor w", "too large"});
  expect_error(
      parsing(R"({"w":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,0]}})"),
      {"tensor w", "too large"});
  expect_error(
      parsing(
          R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[9223372036854775800,9223372036854775804]}})"),
      {"tensor w", "cut short"});
}

TEST(Safetensors, RefusesOddFields) {
  expect_error(parsing(R"({"w":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}})", "abcd"),
               {"tensor w", "F99"});
  expect_error(parsing(R"({"w":{"shape":[1],"data_offsets":[0,4]}})", "abcd"), {"w", "no dtype"});
  expect_error(parsing(R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", "abcd"), {"w", "no shape"});
  expect_error(parsing(R"({"w":{"dtype":"F32","shape":[1]}})", "abcd"), {"w", "data_offsets"});
  expect_error(parsing(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", "abcd"),
               {"w", "data_offsets"});
  expect_error(parsing(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "abcd"),
               {"w", "reversed"});
  expect_error(parsing(R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "abcd"),
               {"w", "shape", "-1"});
  expect_error(parsing(R"({"w":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", "abcd"),
               {"w", "shape", "1.5"});
  expect_error(parsing(R"({"w":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", "abcd"),
               {"w", "shape", "list"});
  expect_error(parsing(R"({"w":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", "abcd"),
               {"w", "shape", "string"});
  expect_error(parsing(R"({"w":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", "abcd"),
               {"w", "shape", "number"});
  expect_error(parsing(R"({"w":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}})", "abcd"),
               {"w", "dtype", "list"});
  expect_error(parsing(R"({"w":{"dtype":{},"shape":[1],"data_offsets":[0,4]}})", "abcd"),
               {"w", "dtype", "object"});
  expect_error(parsing(R"({"w":{"dtype":null,"shape":[1],"data_offsets":[0,4]}})", "abcd"),
               {"w", "dtype", "null"});
  expect_error(
      parsing(R"({"w":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "abcd"),
      {"w", "dtype", "twice"});
  expect_error(parsing(R"({"w":3})"), {"w", "expected an object"});
  expect_error(parsing(R"({"w":[3]})"), {"w", "expected an object"});
  expect_error(parsing(R"({"w":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", "a"),
               {"w", "takes 2 bytes"});
}

TEST(Safetensors, RefusesBrokenHeaders) {
  expect_error(parsing("[]"), {"m.safetensors", "byte 8"});
  expect_error(parsing(""), {"m.safetensors", "byte 8"});
  expect_error(parsing("{\"w\""), {"m.safetensors", "column 5"});
  expect_error(parsing("{} x"), {"m.safetensors", "JSON"});
  expect_error(parsing("{\"\xff\":1}"), {"m.safetensors", "JSON"});
  const uint64_t huge = 1ull << 60;
  expect_error([&] { parse(std::string(reinterpret_cast<const char*>(&huge), 8) + "{}"); },
               {"m.safetensors", "1152921504606846976"});
  expect_error(parsing("{\"w\":{\"x\":" + std::string(1'000'000, '[')), {"nested"});
  expect_error(parsing("{\"__metadata__\":" + std::string(1'000'000, '[')),
               {"__metadata__", "expected an object"});
  expect_error(parsing("{\"__metadata__\":{\"x\":" + std::string(1'000'000, '[')), {"nested"});
}

TEST(Safetensors, HostileNamesStayOnOneLine) {
  expect_error(
      parsing(R"({"a\u001b[2J\nb":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "abcd"),
      {"a\\x1b[2J\\x0ab"});
}

}  // namespace
}  // namespace braid

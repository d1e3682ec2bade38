#include "checkpoint/gguf.h"

#include <gtest/gtest.h>

#include "checkpoint/expect_error.h"
#include "checkpoint/gguf_builder.h"

namespace braid {
namespace {

using testing::expect_error;
using testing::GgufBuilder;

GgufFile parse(const std::string& bytes) {
  // An exact copy on the heap: reads past its end are seen by the address sanitizer.
  const auto copy = std::make_shared<std::vector<char>>(bytes.begin(), bytes.end());
  return GgufFile::parse(std::as_bytes(std::span(*copy)), copy, "m.gguf");
}
void expect_refused(const std::string& bytes, std::initializer_list<std::string_view> parts) {
  expect_error([&] { parse(bytes); }, parts);
}
void expect_refused(const GgufBuilder& builder, std::initializer_list<std::string_view> parts) {
  expect_refused(builder.build(), parts);
}

GgufBuilder sample() {
  GgufBuilder builder;
  builder.add("general.architecture", "gemma4").add("gemma4.block_count", uint32_t{2});
  builder.tensor_f32("token_embd.weight", {3, 2}, {1, 2, 3, 4, 5, 6});
  builder.tensor("blk.0.attn_q.weight", {32, 2}, 8, std::string(68, '\0'));
  return builder;
}

TEST(Gguf, ReadsTensorsInRowColumnOrder) {
  for (const uint32_t version : {2u, 3u}) {
    const GgufFile file = parse(sample().version(version).build());
    EXPECT_EQ(file.version, version);
    EXPECT_EQ(file.metadata.string("general.architecture"), "gemma4");
    ASSERT_EQ(file.tensors.size(), 2u);
    const StoredTensor& embedding = file.tensors[0];
    EXPECT_EQ(embedding.weight.shape, (Shape{2, 3}));
    EXPECT_EQ(embedding.dtype_name, "f32");
    float row[3];
    std::memcpy(row, embedding.weight.row(1), sizeof(row));
    EXPECT_EQ(row[0], 4);
    EXPECT_EQ(file.tensors[1].weight.format, &quant_format(FormatId::kQ8_0));
    EXPECT_EQ(file.tensors[1].stored_bytes, 68);
  }
}

TEST(Gguf, ReadsEveryReadableType) {
  struct Case {
    uint32_t type;
    FormatId format;
  };
  for (const auto& [type, id] : std::initializer_list<Case>{{0, FormatId::kF32},
                                                            {1, FormatId::kF16},
                                                            {2, FormatId::kQ4_0},
                                                            {3, FormatId::kQ4_1},
                                                            {6, FormatId::kQ5_0},
                                                            {7, FormatId::kQ5_1},
                                                            {8, FormatId::kQ8_0},
                                                            {10, FormatId::kQ2K},
                                                            {11, FormatId::kQ3K},
                                                            {12, FormatId::kQ4K},
                                                            {13, FormatId::kQ5K},
                                                            {14, FormatId::kQ6K},
                                                            {20, FormatId::kIq4Nl},
                                                            {30, FormatId::kBF16}}) {
    const QuantFormat& format = quant_format(id);
    const auto bytes = static_cast<size_t>(2 * format.row_bytes(256));
    const GgufFile file =
        parse(GgufBuilder().tensor("w", {256, 2}, type, std::string(bytes, '\0')).build());
    EXPECT_EQ(file.tensors[0].weight.format, &format) << format.name;
    EXPECT_EQ(file.tensors[0].stored_bytes, static_cast<int64_t>(bytes)) << format.name;
    // One byte less is too short.
    expect_refused(GgufBuilder().tensor("w", {256, 2}, type, std::string(bytes - 1, '\0')),
                   {"tensor w", "cut short"});
  }
}

TEST(Gguf, TypesNoKernelReadsAreKept) {
  const GgufFile file = parse(GgufBuilder()
                                  .tensor("a", {256}, 16, std::string(66, '\0'))
                                  .tensor("b", {7}, 12345, "")
                                  .tensor("c", {2}, 26, std::string(8, '\0'))
                                  .build());
  EXPECT_EQ(file.tensors[0].dtype_name, "iq2_xxs");
  EXPECT_EQ(file.tensors[1].dtype_name, "ggml type 12345");
  EXPECT_EQ(file.tensors[2].dtype_name, "i32");
  for (const StoredTensor& tensor : file.tensors) EXPECT_EQ(tensor.weight.format, nullptr);
}

TEST(Gguf, HonoursAlignment) {
  const GgufFile file = parse(GgufBuilder()
                                  .pad_to(64)
                                  .add("general.alignment", uint32_t{64})
                                  .tensor_f32("a", {1}, {1})
                                  .tensor_f32("b", {1}, {2})
                                  .build());
  float value;
  std::memcpy(&value, file.tensors[1].weight.data, sizeof(value));
  EXPECT_EQ(value, 2);
  EXPECT_EQ(file.tensors[1].weight.data - file.tensors[0].weight.data, 64);
}

// robustness B01
TEST(Gguf, B01DimensionOfZeroIn65Bytes) {
  // Magic, version, counts, one tensor: 8 + 1 name, 4 + 8 dimension, 4 type, 8 offset, 8 left.
  std::string bytes = GgufBuilder().pad_to(1).tensor("w", {0}, 0, std::string(8, '\0')).build();
  ASSERT_EQ(bytes.size(), 65u);
  expect_refused(bytes, {"m.gguf", "byte 37", "tensor w: dimension 0", "is 0"});
}

TEST(Gguf, B01AlignmentThatIsAString) {
  expect_refused(GgufBuilder().add("general.alignment", "32").tensor_f32("w", {1}, {1}),
                 {"m.gguf", "general.alignment", "an integer", "the string \"32\""});
}

TEST(Gguf, B01AlignmentThatIsNoPowerOfTwo) {
  for (const uint32_t alignment : {0u, 3u, 4u, 24u}) {
    expect_refused(GgufBuilder().add("general.alignment", alignment).tensor_f32("w", {1}, {1}),
                   {"m.gguf", "general.alignment", std::to_string(alignment) + " is not a power"});
  }
  expect_refused(GgufBuilder().add("general.alignment", int64_t{-32}), {"-32 is not a power"});
  // Lawful, though the data would start beyond the file.
  expect_refused(GgufBuilder().add("general.alignment", int64_t{1} << 62).tensor_f32("w", {1}, {1}),
                 {"tensor w: offset", "0 bytes of data"});
}

TEST(Gguf, B01OffsetBeyondTheFile) {
  expect_refused(GgufBuilder().tensor("w", {1}, 0, "abcd", uint64_t{1} << 40),
                 {"m.gguf", "byte 49", "tensor w: offset", "1099511627776"});
  expect_refused(GgufBuilder().tensor("w", {1}, 0, "abcd", ~uint64_t{31}),
                 {"tensor w: offset", "cut short"});
}

TEST(Gguf, RefusesMisalignedAndOverlappingTensors) {
  expect_refused(GgufBuilder().tensor("w", {1}, 0, "abcd", 4),
                 {"tensor w: offset", "no multiple of the alignment 32"});
  expect_refused(
      GgufBuilder().tensor("v", {16}, 0, std::string(64, '\0')).tensor("w", {1}, 0, "abcd", 32),
      {"tensor w", "overlaps tensor v"});
}

TEST(Gguf, RefusesImpossibleShapes) {
  expect_refused(GgufBuilder().tensor("w", {1, 1, 1, 1, 1}, 0, "abcd"), {"w", "5 dimensions"});
  expect_refused(GgufBuilder().tensor("w", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, "abcd"),
                 {"w: dimension 1", "impossibly large"});
  expect_refused(GgufBuilder().tensor("w", {uint64_t{1} << 61}, 8, "abcd"), {"impossibly large"});
  expect_refused(GgufBuilder().tensor("w", {~uint64_t{0}}, 0, "abcd"), {"impossibly large"});
  expect_refused(GgufBuilder().tensor("w", {uint64_t{1} << 40}, 0, "abcd"), {"cut short"});
  expect_refused(GgufBuilder().tensor("w", {33}, 2, std::string(36, '\0')),
                 {"tensor w", "rows of 33", "q4_0"});
}

TEST(Gguf, RefusesHugeCountsWithoutAllocating) {
  const uint64_t huge = uint64_t{1} << 60;
  expect_refused(GgufBuilder().claim_counts(huge, 0), {"byte 8", "number of tensors"});
  expect_refused(GgufBuilder().claim_counts(0, huge), {"byte 16", "number of metadata entries"});
  const auto array = [&](uint32_t type) {
    std::string bytes(reinterpret_cast<const char*>(&type), 4);
    bytes.append(reinterpret_cast<const char*>(&huge), 8);
    return GgufBuilder().add_raw("tokens", 9, bytes);
  };
  for (const uint32_t type : {0u, 4u, 7u, 8u, 12u}) {
    expect_refused(array(type), {"m.gguf", "tokens", "1152921504606846976 items"});
  }
  expect_refused(array(9), {"tokens", "list of lists"});
  expect_refused(array(13), {"tokens", "unknown type 13"});
  expect_refused(GgufBuilder().add_raw("name", 8, {reinterpret_cast<const char*>(&huge), 8}),
                 {"name", "a string of 1152921504606846976 bytes"});
}

TEST(Gguf, RefusesOddMetadata) {
  expect_refused(GgufBuilder().add_raw("key", 13, "abcd"), {"key", "unknown value type 13"});
  expect_refused(GgufBuilder().add_raw("key", 7, "\x02"), {"key", "boolean of value 2"});
  expect_refused(GgufBuilder().add("key", ~uint64_t{0}), {"key", "too large"});
  expect_refused(GgufBuilder().add("key", uint32_t{1}).add("key", uint32_t{1}),
                 {"key", "occurs twice"});
  expect_refused(GgufBuilder().tensor_f32("w", {1}, {1}).tensor_f32("w", {1}, {1}),
                 {"tensor w", "occurs twice"});
}

TEST(Gguf, RefusesOtherFilesAndVersions) {
  expect_refused(std::string(), {"m.gguf", "not a GGUF"});
  expect_refused(std::string("GGML\3\0\0\0", 8), {"m.gguf", "byte 0", "not a GGUF"});
  expect_refused(sample().version(1), {"byte 4", "version", "convert the model again"});
  expect_refused(sample().version(4), {"byte 4", "version", "4 is not supported"});
  expect_refused(sample().version(0x03000000), {"byte 4", "big-endian"});
}

TEST(Gguf, RefusesEveryTruncation) {
  const std::string bytes = sample().build();
  parse(bytes);
  for (size_t size = 0; size < bytes.size(); ++size) {
    SCOPED_TRACE(size);
    expect_refused(bytes.substr(0, size), {"m.gguf"});
  }
}

}  // namespace
}  // namespace braid

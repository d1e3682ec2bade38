#include "checkpoint/quantized_tensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "base/error.h"
#include "checkpoint/expect_error.h"
#include "checkpoint/model_files.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_builder.h"
#include "quant/panels.h"
#include "support/fresh_seed.h"
#include "support/temp_folder.h"

namespace braid {
namespace {

using testing::SafetensorsBuilder;
using testing::TempFolder;

constexpr const char* kPacked = R"({"quant_method": "compressed-tensors", "config_groups": {"g":
  {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "group", "group_size": 32}}}})";
constexpr const char* kInt8 = R"({"quant_method": "compressed-tensors", "config_groups": {"g":
  {"targets": ["Linear"], "weights": {"num_bits": 8, "strategy": "channel"}}}})";
constexpr const char* kGptq1 = R"({"quant_method": "gptq", "bits": 4, "group_size": 128})";
constexpr const char* kGptq2 =
    R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"})";

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// The parts of one matrix, of which tests spoil some.
struct Part {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};
using Parts = std::map<std::string, Part>;

ModelFiles open(const TempFolder& folder, const char* config, const Parts& parts) {
  folder.write(
      "config.json",
      std::string(R"({"model_type": "gemma3_text", "quantization_config": )") + config + "}");
  SafetensorsBuilder builder;
  for (const auto& [name, part] : parts) builder.add(name, part.dtype, part.shape, part.bytes);
  folder.write("model.safetensors", builder.build());
  return ModelFiles::open(folder.path());
}

// A matrix of random codes, and what it comes to.
struct Matrix {
  int64_t rows, cols, group;
  int bits = 4;
  std::vector<int> codes, zeros;  // [rows, cols], [rows, groups]
  std::vector<float> scales;      // [rows, groups], bfloat16 numbers
  std::vector<int32_t> group_of;  // [cols]

  int64_t groups() const { return (cols + group - 1) / group; }
  std::vector<float> values() const {
    std::vector<float> values;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t g = r * groups() + group_of[c];
        values.push_back(scales[g] * static_cast<float>(codes[r * cols + c] - zeros[g]));
      }
    }
    return values;
  }
};
Matrix random_matrix(testing::FreshRandom& random, int64_t rows, int64_t cols, int64_t group,
                     bool symmetric, int bits = 4) {
  Matrix m{rows, cols, group, bits, {}, {}, {}, {}};
  const int top = (1 << bits) - 1;
  for (int64_t i = 0; i < rows * cols; ++i) {
    m.codes.push_back(static_cast<int>(random.integer(0, top)));
  }
  for (int64_t i = 0; i < rows * m.groups(); ++i) {
    m.zeros.push_back(symmetric ? top / 2 + 1 : static_cast<int>(random.integer(0, top)));
    m.scales.push_back(
        to_float(to_bfloat16(std::normal_distribution<float>(0, 0.1f)(random.engine()))));
  }
  for (int64_t c = 0; c < cols; ++c) m.group_of.push_back(static_cast<int32_t>(c / group));
  return m;
}

std::string packed(const std::vector<int>& codes, int bits) {
  const size_t in_word = 32 / static_cast<size_t>(bits);
  std::vector<uint32_t> words((codes.size() + in_word - 1) / in_word);
  for (size_t i = 0; i < codes.size(); ++i) {
    words[i / in_word] |= static_cast<uint32_t>(codes[i]) << (i % in_word * bits);
  }
  return bytes_of(words);
}

Part scales_part(const Matrix& m, std::string_view dtype, bool transposed = false) {
  std::string bytes;
  for (int64_t i = 0; i < m.rows * m.groups(); ++i) {
    const int64_t at = transposed ? i % m.rows * m.groups() + i / m.rows : i;
    if (dtype == "BF16") bytes += bytes_of(std::vector{to_bfloat16(m.scales[at])});
    if (dtype == "F16") bytes += bytes_of(std::vector{to_float16(m.scales[at])});
    if (dtype == "F32") bytes += bytes_of(std::vector{m.scales[at]});
  }
  const std::vector<int64_t> shape =
      transposed ? std::vector{m.groups(), m.rows} : std::vector{m.rows, m.groups()};
  return {std::string(dtype), shape, bytes};
}

// rows: a multiple of 8.
Parts compressed_parts(const Matrix& m, bool with_zeros, const std::string& name = "x.weight",
                       std::string_view dtype = "BF16") {
  const int64_t in_word = 32 / m.bits;
  Parts parts;
  std::string words;
  for (int64_t r = 0; r < m.rows; ++r) {
    words += packed({m.codes.begin() + r * m.cols, m.codes.begin() + (r + 1) * m.cols}, m.bits);
  }
  parts[name + "_packed"] = {"I32", {m.rows, (m.cols + in_word - 1) / in_word}, words};
  parts[name + "_scale"] = scales_part(m, dtype);
  parts[name + "_shape"] = {"I64", {2}, bytes_of(std::vector<int64_t>{m.rows, m.cols})};
  if (with_zeros) {
    std::vector<uint32_t> zeros(static_cast<size_t>(m.rows / in_word * m.groups()));
    for (int64_t r = 0; r < m.rows; ++r) {
      for (int64_t g = 0; g < m.groups(); ++g) {
        zeros[r / in_word * m.groups() + g] |= static_cast<uint32_t>(m.zeros[r * m.groups() + g])
                                               << (r % in_word * m.bits);
      }
    }
    parts[name + "_zero_point"] = {"I32", {m.rows / in_word, m.groups()}, bytes_of(zeros)};
  }
  return parts;
}

Parts gptq_parts(const Matrix& m, bool less_one, std::string_view dtype = "F16") {
  const int64_t in_word = 32 / m.bits;
  std::vector<uint32_t> words(static_cast<size_t>(m.cols / in_word * m.rows));
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.cols; ++c) {
      words[c / in_word * m.rows + r] |= static_cast<uint32_t>(m.codes[r * m.cols + c])
                                         << (c % in_word * m.bits);
    }
  }
  std::string zeros;
  for (int64_t g = 0; g < m.groups(); ++g) {
    std::vector<int> line;
    for (int64_t r = 0; r < m.rows; ++r) {
      line.push_back((m.zeros[r * m.groups() + g] - (less_one ? 1 : 0)) & ((1 << m.bits) - 1));
    }
    zeros += packed(line, m.bits);
  }
  return {{"x.qweight", {"I32", {m.cols / in_word, m.rows}, bytes_of(words)}},
          {"x.qzeros", {"I32", {m.groups(), m.rows / in_word}, zeros}},
          {"x.scales", scales_part(m, dtype, true)},
          {"x.g_idx", {"I32", {m.cols}, bytes_of(m.group_of)}}};
}

// Every row of what a binder makes of x.weight.
void expect_matrix(const ModelFiles& files, const Shape& shape, const std::vector<float>& values,
                   std::string_view format) {
  WeightBinder binder(files.weights());
  const Weight weight = binder.weight("x.weight", shape);
  ASSERT_FALSE(weight.empty());
  EXPECT_EQ(weight.format->name, format);
  std::vector<float> row(static_cast<size_t>(weight.cols()));
  for (int64_t r = 0; r < static_cast<int64_t>(values.size()) / weight.cols(); ++r) {
    expand_row(weight, r, row.data());
    for (int64_t c = 0; c < weight.cols(); ++c) {
      ASSERT_EQ(row[c], values[r * weight.cols() + c]) << r << " " << c;
    }
  }
  EXPECT_EQ(binder.finish().num_consumed, 1);
}

TEST(QuantizedTensorsTest, CompressedTensorsExpandExactly) {
  testing::FreshRandom random;
  struct Case {
    int64_t cols, group;
    bool symmetric;
    const char* dtype;
    const char* format;
  };
  for (const Case& c : std::vector<Case>{{256, 128, true, "BF16", "w4g128"},
                                         {192, 64, true, "BF16", "w4g64"},
                                         {96, 32, false, "BF16", "w4g32_asym"},
                                         {256, 128, false, "F32", "w4g128_asym_f32"},
                                         {128, 64, true, "F16", "w4g64_f32"},
                                         {256, 256, true, "BF16", "w4g128"},  // one a row
                                         {96, 96, true, "BF16", "w4g32"},
                                         {512, 256, false, "BF16", "w4g128_asym"},
                                         {40, 8, true, "BF16", "f32"},
                                         {36, 36, true, "BF16", "f32"}}) {
    SCOPED_TRACE(c.format);
    const Matrix m = random_matrix(random, 24, c.cols, c.group, c.symmetric);
    if (std::string_view(c.dtype) == "F16" || c.cols % 8 != 0) {
      // float16 holds few of the scales exactly: compare with what it holds.
      Matrix rounded = m;
      for (float& scale : rounded.scales) {
        if (std::string_view(c.dtype) == "F16") scale = to_float(to_float16(scale));
      }
      const TempFolder folder;
      expect_matrix(
          open(folder, kPacked, compressed_parts(rounded, !c.symmetric, "x.weight", c.dtype)),
          {24, c.cols}, rounded.values(), c.format);
      continue;
    }
    const TempFolder folder;
    expect_matrix(open(folder, kPacked, compressed_parts(m, !c.symmetric, "x.weight", c.dtype)),
                  {24, c.cols}, m.values(), c.format);
  }
}

TEST(QuantizedTensorsTest, EightBitsOfOneScaleARow) {
  testing::FreshRandom random;
  const Matrix m = random_matrix(random, 8, 96, 96, true, 8);
  std::vector<int8_t> codes;
  for (const int code : m.codes) codes.push_back(static_cast<int8_t>(code - 128));
  Parts parts = {{"x.weight", {"I8", {8, 96}, bytes_of(codes)}},
                 {"x.weight_scale", scales_part(m, "F32")}};
  {
    const TempFolder folder;
    expect_matrix(open(folder, kInt8, parts), {8, 96}, m.values(), "w8c");
  }
  {
    const TempFolder folder;
    parts["x.weight_zero_point"] = {"I8", {8, 1}, std::string(8, '\0')};
    expect_matrix(open(folder, kInt8, parts), {8, 96}, m.values(), "w8c");
  }
  {
    // One for all rows.
    const TempFolder folder;
    Matrix one = m;
    std::fill(one.scales.begin(), one.scales.end(), 0.25f);
    parts["x.weight_scale"] = {"F32", {1}, bytes_of(std::vector{0.25f})};
    parts.erase("x.weight_zero_point");
    expect_matrix(open(folder, kInt8, parts), {8, 96}, one.values(), "w8c");
  }
  {
    const TempFolder folder;
    expect_matrix(open(folder, kInt8, compressed_parts(m, false)), {8, 96}, m.values(), "w8c");
  }
  {
    // Groups of eight bits have no compact format.
    const TempFolder folder;
    const Matrix groups = random_matrix(random, 8, 96, 32, false, 8);
    expect_matrix(open(folder, kInt8, compressed_parts(groups, true)), {8, 96}, groups.values(),
                  "f32");
  }
}

TEST(QuantizedTensorsTest, GptqExpandsExactly) {
  testing::FreshRandom random;
  for (const bool less_one : {true, false}) {
    for (const bool symmetric : {true, false}) {
      const Matrix m = random_matrix(random, 24, 256, 128, symmetric);
      const TempFolder folder;
      Parts parts = gptq_parts(m, less_one, "BF16");
      parts["x.bias"] = {"F16", {24}, std::string(48, '\0')};
      expect_matrix(open(folder, less_one ? kGptq1 : kGptq2, parts), {24, 256}, m.values(),
                    symmetric ? "w4g128" : "w4g128_asym");
    }
  }
  // The last group of 704 columns has half of 128: blocks of 64 lie within groups.
  {
    const Matrix m = random_matrix(random, 8, 704, 128, true);
    const TempFolder folder;
    expect_matrix(open(folder, kGptq1, gptq_parts(m, true, "F32")), {8, 704}, m.values(),
                  "w4g64_f32");
  }
  {
    const Matrix m = random_matrix(random, 8, 96, 96, true, 8);
    const TempFolder folder;
    expect_matrix(open(folder, kGptq1, gptq_parts(m, true, "F32")), {8, 96}, m.values(), "w8c");
  }
  // Columns in the order of their activations: exact, if not small.
  Matrix m = random_matrix(random, 8, 128, 32, true);
  std::shuffle(m.group_of.begin(), m.group_of.end(), random.engine());
  const TempFolder folder;
  expect_matrix(open(folder, kGptq2, gptq_parts(m, false, "BF16")), {8, 128}, m.values(), "f32");
}

TEST(QuantizedTensorsTest, StacksAndExpertsShareAFormat) {
  testing::FreshRandom random;
  // A stack of two matrices.
  const Matrix a = random_matrix(random, 8, 64, 32, true),
               b = random_matrix(random, 8, 64, 32, true);
  Parts parts = compressed_parts(a, false, "experts.down_proj");
  for (auto& [name, part] : compressed_parts(b, false, "experts.down_proj")) {
    if (name.ends_with("_shape")) {
      parts[name] = {"I64", {3}, bytes_of(std::vector<int64_t>{2, 8, 64})};
    } else {
      parts[name].bytes += part.bytes;
      parts[name].shape.insert(parts[name].shape.begin(), 2);
    }
  }
  const TempFolder folder;
  const ModelFiles files = open(folder, kPacked, parts);
  WeightBinder binder(files.weights());
  const Weight stack = binder.weight("experts.down_proj", {2, 8, 64});
  ASSERT_FALSE(stack.empty());
  std::vector<float> expected = a.values(), row(64);
  for (const float value : b.values()) expected.push_back(value);
  for (int64_t r = 0; r < 16; ++r) {
    expand_row(stack, r, row.data());
    for (int64_t c = 0; c < 64; ++c) ASSERT_EQ(row[c], expected[r * 64 + c]);
  }
  EXPECT_NO_THROW(binder.finish());

  // Of two experts one would do without zeros.
  Parts experts = compressed_parts(a, true, "l.experts.0.up_proj.weight");
  experts.merge(compressed_parts(b, false, "l.experts.1.up_proj.weight"));
  const TempFolder other;
  const ModelFiles mixed = open(other, kPacked, experts);
  for (const char* name : {"l.experts.0.up_proj.weight", "l.experts.1.up_proj.weight"}) {
    EXPECT_EQ(mixed.weights().find(name)->payload().format->name, "w4g32_asym");
  }
}

TEST(QuantizedTensorsTest, PartsThatDoNotFitAreNamed) {
  testing::FreshRandom random;
  const Matrix m = random_matrix(random, 8, 64, 32, false);
  const auto expect_error = [&](const char* config, const std::function<void(Parts&)>& spoil,
                                const std::string& message) {
    Parts parts =
        std::string_view(config) == kPacked ? compressed_parts(m, true) : gptq_parts(m, true);
    spoil(parts);
    const TempFolder folder;
    testing::expect_error([&] { open(folder, config, parts); }, {message});
  };
  expect_error(
      kPacked, [](Parts& p) { p.erase("x.weight_scale"); },
      "x.weight_packed: x.weight_scale is missing");
  expect_error(
      kPacked, [](Parts& p) { p["x.weight_packed"].dtype = "F32"; }, "x.weight_packed");
  expect_error(
      kPacked,
      [](Parts& p) {
        p["x.weight_shape"].bytes = bytes_of(std::vector<int64_t>{8, 1000});
      },
      "x.weight_packed: 8 words a row");
  expect_error(
      kPacked,
      [](Parts& p) {
        p["x.weight_shape"].bytes = bytes_of(std::vector<int64_t>{8, INT64_MAX});
      },
      "x.weight_packed: 8 words a row");
  expect_error(
      kPacked,
      [](Parts& p) {
        p["x.weight_scale"].shape = {4, 4};
      },
      "x.weight_scale");
  expect_error(
      kPacked,
      [](Parts& p) {
        p["x.weight_scale"] = {"BF16", {8, 3}, std::string(48, 'x')};
      },
      "x.weight_scale: 3 groups do not divide 64 columns");
  expect_error(
      kPacked,
      [](Parts& p) {
        p["x.weight_scale"] = {"I32", {8, 1}, std::string(32, 'x')};
      },
      "x.weight_scale: scales of type I32");
  expect_error(
      kPacked,
      [](Parts& p) {
        p["x.weight_zero_point"] = {"I32", {1, 1}, std::string(4, 'x')};
      },
      "x.weight_zero_point: shape");
  expect_error(
      kPacked,
      [](Parts& p) {
        p["x.weight_g_idx"] = {"I32", {64}, bytes_of(std::vector<int32_t>(64, 2))};
      },
      "x.weight_g_idx: group 2 of 2");
  expect_error(
      kGptq1, [](Parts& p) { p.erase("x.qzeros"); }, "x.qweight: x.qzeros is missing");
  expect_error(
      kGptq1,
      [](Parts& p) {
        p["x.scales"].shape = {1, 16};
      },
      "x.qweight");
  expect_error(
      kGptq1,
      [](Parts& p) {
        p["x.g_idx"].shape = {8, 8};
      },
      "x.g_idx: shape [8, 8]");
  expect_error(
      kGptq1, [](Parts& p) { p["x.g_idx"].bytes = bytes_of(std::vector<int32_t>(64, -2)); },
      "x.g_idx: group -2");
  expect_error(
      kGptq1,
      [](Parts& p) {
        p["x.qweight"] = {"I32", {0, 8}, ""};
      },
      "x.");
}

// Layers that gptqmodel has quantised and packed (tools/quantize/make_gptqmodel_fixtures.py). Its
// own values are products in float16, ours are not rounded.
TEST(QuantizedTensorsTest, LayersOfGptqmodelAreWhatItSays) {
  for (const char* name : {"v1", "v1_order", "v1_asymmetric_order", "v2_order", "v2_asymmetric"}) {
    SCOPED_TRACE(name);
    const std::filesystem::path folder =
        std::filesystem::path(BRAID_TEST_DATA) / "quants" / "gptqmodel" / name;
    const ModelFiles files = ModelFiles::open(folder);
    int64_t compared = 0;
    for (const StoredTensor& expected : read_safetensors(folder / "expected.safetensors")) {
      const StoredTensor* found = files.weights().find(expected.name);
      ASSERT_NE(found, nullptr) << expected.name;
      const Weight weight = found->payload();
      ASSERT_EQ(weight.shape, expected.weight.shape);
      std::vector<float> a(static_cast<size_t>(weight.cols())), b(a.size());
      for (int64_t r = 0; r < weight.rows(); ++r) {
        expand_row(weight, r, a.data());
        expand_row(expected.weight, r, b.data());
        for (size_t c = 0; c < a.size(); ++c) {
          ASSERT_NEAR(a[c], b[c], std::abs(b[c]) / 2048) << expected.name << " " << r << " " << c;
        }
      }
      ++compared;
    }
    EXPECT_EQ(compared, 2);
    EXPECT_EQ(files.weights().size(), 2u);
  }
}

// Parts that belong to nothing, and a bias that says something, are left for the binder to refuse.
TEST(QuantizedTensorsTest, LeftoversAreRefused) {
  testing::FreshRandom random;
  const Matrix m = random_matrix(random, 8, 64, 32, true);
  Parts parts = gptq_parts(m, true);
  parts["x.bias"] = {"F32", {8}, bytes_of(std::vector<float>(8, 1))};
  const TempFolder folder;
  const ModelFiles files = open(folder, kGptq1, parts);
  WeightBinder binder(files.weights());
  binder.weight("x.weight", {8, 64});
  testing::expect_error([&] { binder.finish(); }, {"x.bias"});
}

}  // namespace
}  // namespace braid

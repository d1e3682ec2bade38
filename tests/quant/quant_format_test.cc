#include "quant/quant_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"

namespace braid {
namespace {

// Tensors of the golden file (see tests/data/quants/README.md), by name.
class Goldens {
 public:
  Goldens() {
    const char* folder = std::getenv("BRAID_TEST_DATA_DIR");
    const std::string path =
        std::string(folder != nullptr ? folder : BRAID_TEST_DATA) + "/quants/quants.safetensors";
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    if (bytes_.size() < 8) throw Error("{}: cannot be read; set BRAID_TEST_DATA_DIR", path);
    uint64_t header_bytes;
    std::memcpy(&header_bytes, bytes_.data(), 8);
    header_ = nlohmann::json::parse(bytes_.data() + 8, bytes_.data() + 8 + header_bytes);
    payload_ = 8 + header_bytes;
  }
  bool has(const std::string& name) const { return header_.contains(name); }
  template <typename T>
  std::vector<T> read(const std::string& name) const {
    const auto& offsets = header_.at(name).at("data_offsets");
    const size_t begin = offsets.at(0), end = offsets.at(1);
    std::vector<T> values((end - begin) / sizeof(T));
    std::memcpy(values.data(), bytes_.data() + payload_ + begin, end - begin);
    return values;
  }

 private:
  std::vector<char> bytes_;
  nlohmann::json header_;
  size_t payload_ = 0;
};

std::string upper(std::string_view name) {
  std::string result(name);
  for (char& c : result) c = static_cast<char>(std::toupper(c));
  return result;
}

constexpr FormatId kBlockFormats[] = {FormatId::kQ8_0, FormatId::kQ4_0, FormatId::kQ4_1,
                                      FormatId::kQ5_0, FormatId::kQ5_1, FormatId::kIq4Nl,
                                      FormatId::kQ2K,  FormatId::kQ3K,  FormatId::kQ4K,
                                      FormatId::kQ5K,  FormatId::kQ6K};

std::vector<float> expand(const QuantFormat& format, const void* blocks, int64_t elements) {
  std::vector<float> values(static_cast<size_t>(elements), NAN);
  dequantize(format, blocks, elements, values.data());
  return values;
}

TEST(QuantFormatTest, ExpandsGoldenBlocksExactly) {
  const Goldens goldens;
  for (const FormatId id : kBlockFormats) {
    const QuantFormat& format = quant_format(id);
    SCOPED_TRACE(format.name);
    const auto blocks = goldens.read<uint8_t>(upper(format.name) + ".blocks");
    const auto expected = goldens.read<float>(upper(format.name) + ".values");
    const auto elements = static_cast<int64_t>(expected.size());
    ASSERT_GT(elements, 0);
    ASSERT_EQ(format.row_bytes(elements), static_cast<int64_t>(blocks.size()));
    const std::vector<float> values = expand(format, blocks.data(), elements);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(values[i], expected[i]) << "value " << i;
    }
  }
}

// Ties may fall either way, and a float32 scale may round otherwise by one unit in the last place;
// so the errors are compared, not the bytes.
TEST(QuantFormatTest, QuantisesAsWellAsTheGoldens) {
  const Goldens goldens;
  int compared = 0;
  for (const FormatId id : kBlockFormats) {
    const QuantFormat& format = quant_format(id);
    if (!goldens.has(upper(format.name) + ".quantised")) continue;
    SCOPED_TRACE(format.name);
    ++compared;
    const auto inputs = goldens.read<float>(upper(format.name) + ".inputs");
    const auto golden = goldens.read<uint8_t>(upper(format.name) + ".quantised");
    const auto elements = static_cast<int64_t>(inputs.size());
    std::vector<uint8_t> blocks(golden.size());
    quantize(format, inputs.data(), elements, blocks.data());
    const auto ours = expand(format, blocks.data(), elements);
    const auto theirs = expand(format, golden.data(), elements);
    for (int64_t i = 0; i < elements; ++i) {
      const int64_t block = i / 32 * 32;
      const auto [low, high] = std::minmax_element(&inputs[block], &inputs[block] + 32);
      const float range = std::max(std::fabs(*low), std::fabs(*high));
      ASSERT_LE(std::fabs(ours[i] - inputs[i]),
                std::fabs(theirs[i] - inputs[i]) + 2 * 0x1p-11f * range)
          << "value " << i;
    }
  }
  EXPECT_EQ(compared, 5);
}

// Largest distance of a value from what it is rounded to, in parts of its block's largest
// magnitude: half a step of the grid; at the far end of the symmetric formats, whose signed peak
// takes the one level that the other side lacks, a whole step. Float16 scales add 2^-11.
double worst_error(FormatId id) {
  constexpr double kScale = 0x1p-11;
  switch (id) {
    case FormatId::kF32:
      return 0;
    case FormatId::kF16:
      return 0x1p-11;
    case FormatId::kBF16:
      return 0x1p-8;
    case FormatId::kQ8_0:
      return 0.5 / 127 + kScale;
    case FormatId::kQ4_0:
      return 1.0 / 8 + kScale;
    case FormatId::kQ5_0:
      return 1.0 / 16 + kScale;
    case FormatId::kQ4_1:  // steps of (max - min) / 15, a range of up to twice the magnitude
      return 1.0 / 15 + 4 * kScale;
    case FormatId::kQ5_1:
      return 1.0 / 31 + 4 * kScale;
    default:
      return NAN;
  }
}

TEST(QuantFormatTest, RoundTripStaysWithinTheGrid) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 engine(seed);
  for (int id = 0; id < kNumFormats; ++id) {
    const QuantFormat& format = quant_format(static_cast<FormatId>(id));
    const double error = worst_error(format.id);
    if (std::isnan(error)) continue;
    SCOPED_TRACE(format.name);
    for (int round = 0; round < 200; ++round) {
      std::normal_distribution<float> normal(0, std::exp2(static_cast<float>(round % 8 - 4)));
      std::vector<float> values(32);
      float peak = 0;
      for (float& x : values) peak = std::max(peak, std::fabs(x = normal(engine)));
      std::vector<uint8_t> blocks(static_cast<size_t>(format.row_bytes(32)));
      quantize(format, values.data(), 32, blocks.data());
      const auto rounded = expand(format, blocks.data(), 32);
      for (int i = 0; i < 32; ++i) {
        const double magnitude = format.plain() ? std::fabs(values[i]) : peak;
        ASSERT_LE(std::fabs(rounded[i] - values[i]), error * magnitude * (1 + 0x1p-10) + 0x1p-24)
            << values[i] << " became " << rounded[i];
      }
    }
  }
}

// A block that is already on the grid of iq4_nl comes back unchanged.
TEST(QuantFormatTest, Iq4NlKeepsItsOwnGrid) {
  constexpr int kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                               1,    13,   25,  38,  53,  69,  89,  113};
  const QuantFormat& format = quant_format(FormatId::kIq4Nl);
  std::vector<float> values;
  for (int i = 0; i < 32; ++i) values.push_back(0.125f * static_cast<float>(kLevels[i * 7 % 16]));
  uint8_t block[18];
  quantize(format, values.data(), 32, block);
  EXPECT_EQ(expand(format, block, 32), values);
}

TEST(QuantFormatTest, ZerosStayZero) {
  const std::vector<float> zeros(128);
  for (int id = 0; id < kNumFormats; ++id) {
    const QuantFormat& format = quant_format(static_cast<FormatId>(id));
    if (!can_quantize(format)) continue;
    std::vector<uint8_t> blocks(static_cast<size_t>(format.row_bytes(128)), 0xff);
    quantize(format, zeros.data(), 128, blocks.data());
    EXPECT_EQ(expand(format, blocks.data(), 128), zeros) << format.name;
  }
}

TEST(QuantFormatTest, FindsFormatsByName) {
  for (int id = 0; id < kNumFormats; ++id) {
    const QuantFormat& format = quant_format(static_cast<FormatId>(id));
    EXPECT_EQ(static_cast<int>(format.id), id);
    EXPECT_EQ(find_quant_format(format.name), &format);
  }
  EXPECT_EQ(find_quant_format("q4_7"), nullptr);
  EXPECT_EQ(find_quant_format(""), nullptr);
}

TEST(QuantFormatTest, RefusesToWriteReadOnlyFormats) {
  const std::vector<float> values(256);
  uint8_t block[256];
  for (const FormatId id :
       {FormatId::kQ2K, FormatId::kQ3K, FormatId::kQ4K, FormatId::kQ5K, FormatId::kQ6K}) {
    const QuantFormat& format = quant_format(id);
    EXPECT_FALSE(can_quantize(format));
    EXPECT_THROW(quantize(format, values.data(), 256, block), Error) << format.name;
  }
}

}  // namespace
}  // namespace braid

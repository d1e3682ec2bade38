// Weights in the layout that CUDA devices have of some formats.

#include "quant/device_tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ops/embedding/embedding.h"
#include "ops/linear/linear.h"
#include "ops/linear/random_weight.h"
#include "ops/op_test.h"
#include "quant/cuda/pack_tiles.h"
#include "reference/linear.h"

namespace braid {
namespace {

// Up to so many tokens weights are multiplied without rounding.
constexpr int64_t kFewTokens = 64;

// Relative to Σ |w x|. Sums in any order; tensor cores may cut off what they cannot keep (twice the
// error of rounding); a group's sum is rounded once more when it is scaled and added. Weights that
// are expanded are rounded to bfloat16.
double bound_of(const LinearInput& input, int64_t cols, bool expanded) {
  return static_cast<double>(cols + 3) * 2 * kUnitRoundoff * 1.01 +
         (input.precision == ActivationPrecision::kBF16 && expanded ? 0x1p-8 * 1.01 : 0);
}

class DeviceTilesTest : public OpTest {
 protected:
  // Columns that come in multiples.
  static int64_t columns(FormatId id) {
    for (const int64_t cols : {32, 64, 128}) {
      if (cols % quant_format(id).block_elements == 0 &&
          tile_format(quant_format(id), cols) != nullptr) {
        return cols;
      }
    }
    return 0;
  }
  std::vector<FormatId> formats() const {
    std::vector<FormatId> found;
    for (int id = 0; id < kNumFormats; ++id) {
      const QuantFormat& format = quant_format(static_cast<FormatId>(id));
      if (columns(format.id) != 0) found.push_back(format.id);
    }
    return found;
  }
};

TEST_P(DeviceTilesTest, ProductsMatchReference) {
  for (const FormatId id : formats()) {
    const int64_t only = small_tests() ? random.pick<int64_t>({67, 200}) : 0;
    for (const int64_t rows : {1, 32, 40, 67, 200, 530}) {
      if (only > 0 && rows != only) continue;
      const int64_t most = small_tests() ? 9 : 33;
      const int64_t runs =
          random.pick<int64_t>({1, 2, 3, random.integer(4, rows < 100 ? most : 5)});
      const int64_t cols = columns(id) * runs;
      const Weight weight = random_weight(random, id, {rows, cols});
      const std::vector<float> expanded = reference::expand(weight);
      const Weight tiles = cuda::pack_tiles(on_target(weight));
      ASSERT_TRUE(in_tiles(*tiles.format));
      PaddedTensor x({70, cols}, 3);
      x.fill_normal(random);
      for (const ActivationPrecision precision :
           {ActivationPrecision::kF32, ActivationPrecision::kBF16}) {
        std::vector<uint32_t> one_token;
        for (const int64_t tokens : {0, 1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 70}) {
          if (small_tests() && (tokens % 8 != 1 || tokens == 17)) continue;
          SCOPED_TRACE(fmt::format("{} [{}, {}], {} tokens, precision {}", weight.format->name,
                                   rows, cols, tokens, static_cast<int>(precision)));
          Workspace::Scope scope(workspace);
          const LinearInput input =
              prepare_linear_input(stream, workspace, x.view().rows(0, tokens), precision);
          const std::vector<double> inputs =
              reference::rounded_inputs(input, false, *weight.format);
          PaddedTensor y({tokens, rows}, 3);
          linear(stream, tiles, input, y);
          EXPECT_TRUE(y.gaps_untouched());
          for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t r = 0; r < rows; ++r) {
              const auto expected = reference::dot(&expanded[r * cols], &inputs[t * cols], cols);
              ASSERT_LE(std::fabs(y.row(t)[r] - expected.value),
                        bound_of(input, cols, tokens > kFewTokens) * expected.magnitude)
                  << "token " << t << " row " << r << ": " << y.row(t)[r] << " for "
                  << expected.value;
            }
          }
          if (tokens == 0) continue;
          // The first token has the same sums beside any few others.
          std::vector<uint32_t> first = y.bits();
          first.resize(static_cast<size_t>(rows));
          if (one_token.empty()) one_token = first;
          if (tokens <= kFewTokens) {
            ASSERT_EQ(first, one_token);
          }
        }
      }
    }
  }
}

TEST_P(DeviceTilesTest, ExpertsMatchReference) {
  const std::vector<std::vector<int>> cases = {{0, 1, 0, 1, 1, 0, 2},
                                               {0, 0, 0, 19, 0, 0, 0},
                                               {0, 2, 0, 66, 0, 1, 0},
                                               {300, 64, 65, 0, 161, 1, 128}};
  for (const FormatId id : formats()) {
    const int64_t cols = columns(id) * random.integer(1, small_tests() ? 4 : 9);
    const int64_t rows = small_tests() ? 133 : random.pick<int64_t>({41, 128, 173});
    const Weight weight = random_weight(random, id, {7, rows, cols});
    const std::vector<float> expanded = reference::expand(weight);
    const Weight tiles = cuda::pack_tiles(on_target(weight));
    for (const auto& counts : cases) {
      if (small_tests() && &counts != &cases[0] && &counts != &cases[2]) continue;
      std::vector<int32_t> offsets(1, 0);
      for (const int count : counts) offsets.push_back(offsets.back() + count);
      PaddedTensor x({offsets.back(), cols}, 2);
      x.fill_normal(random);
      for (const ActivationPrecision precision :
           {ActivationPrecision::kF32, ActivationPrecision::kBF16}) {
        SCOPED_TRACE(fmt::format("{} [{}, {}], {} tokens, precision {}", weight.format->name, rows,
                                 cols, offsets.back(), static_cast<int>(precision)));
        Workspace::Scope scope(workspace);
        const LinearInput input = prepare_linear_input(stream, workspace, x, precision);
        const std::vector<double> inputs = reference::rounded_inputs(input, false, *weight.format);
        PaddedTensor y({offsets.back(), rows}, 3);
        grouped_linear(stream, tiles, input, offsets, y);
        EXPECT_TRUE(y.gaps_untouched());
        for (int i = 0; i < 3000; ++i) {
          const int64_t t = random.integer(0, offsets.back() - 1), r = random.integer(0, rows - 1);
          const int64_t expert =
              std::upper_bound(offsets.begin(), offsets.end(), t) - offsets.begin() - 1;
          const auto expected =
              reference::dot(&expanded[(expert * rows + r) * cols], &inputs[t * cols], cols);
          ASSERT_LE(std::fabs(y.row(t)[r] - expected.value),
                    bound_of(input, cols, true) * expected.magnitude)
              << "expert " << expert << " token " << t << " row " << r << ": " << y.row(t)[r]
              << " for " << expected.value;
        }
      }
    }
  }
}

// Wide matrices: blocks of clusters, several pieces a warp, inputs that come in parts.
TEST_P(DeviceTilesTest, WideMatricesMatchReference) {
  for (const FormatId id : {FormatId::kW4G128, FormatId::kW8C, FormatId::kW4G64Asym}) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{672, 15360}, {4160, 3840}}) {
      const Weight weight = random_weight(random, id, {rows, cols});
      const Weight tiles = cuda::pack_tiles(on_target(weight));
      PaddedTensor x({33, cols}, 0);
      x.fill_normal(random);
      for (const int64_t tokens : {1, 10, 33}) {
        if (small_tests() && tokens != (rows < 1000 ? 33 : 10)) continue;
        SCOPED_TRACE(
            fmt::format("{} [{}, {}], {} tokens", weight.format->name, rows, cols, tokens));
        Workspace::Scope scope(workspace);
        const LinearInput input = prepare_linear_input(stream, workspace, x.view().rows(0, tokens),
                                                       ActivationPrecision::kBF16);
        const std::vector<double> inputs = reference::rounded_inputs(input, false, *weight.format);
        PaddedTensor y({tokens, rows}, 3);
        linear(stream, tiles, input, y);
        std::vector<float> row(static_cast<size_t>(cols));
        for (int i = 0; i < 400; ++i) {
          const int64_t r = random.integer(0, rows - 1), t = random.integer(0, tokens - 1);
          dequantize(*weight.format, weight.row(r), cols, row.data());
          const auto expected = reference::dot(row.data(), &inputs[t * cols], cols);
          ASSERT_LE(std::fabs(y.row(t)[r] - expected.value),
                    bound_of(input, cols, false) * expected.magnitude)
              << "token " << t << " row " << r << ": " << y.row(t)[r] << " for " << expected.value;
        }
      }
    }
  }
}

TEST_P(DeviceTilesTest, EmbeddingsHaveTheBitsOfRows) {
  for (const FormatId id : formats()) {
    const int64_t width = 3 * columns(id);
    const Weight table = on_target(random_weight(random, id, {50, width}));
    const std::vector<int32_t> ids = {0, 49, 7, 8, 15, 16, 7};
    const int64_t count = static_cast<int64_t>(ids.size());
    PaddedTensor expected({count, width}, 1), actual({count, width}, 1);
    embedding(stream, table, ids, 1.5f, expected);
    embedding(stream, cuda::pack_tiles(table), ids, 1.5f, actual);
    EXPECT_EQ(actual.bits(), expected.bits()) << table.format->name;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceTilesTest, testing::Values(OpTarget{.cuda = true}),
                         target_name);

}  // namespace
}  // namespace braid

// Every path that linear() and grouped_linear() can take on a CUDA device, by force.

#include "ops/linear/cuda/product_paths.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "ops/linear/linear.h"
#include "ops/linear/random_weight.h"
#include "ops/op_test.h"
#include "quant/cuda/pack_tiles.h"
#include "quant/device_tiles.h"
#include "reference/linear.h"
#include "tensor/cuda/stream_state.h"

namespace braid {
namespace {

using cuda::ProductChoice;
using cuda::ProductKind;
using cuda::ProductPath;
using cuda::ProductSize;
using cuda::ProductTable;
using cuda::ProductTableScope;

class ProductPathsTest : public OpTest {
 protected:
  static std::vector<ProductChoice> choices_of(const ProductSize& size) {
    std::vector<ProductChoice> choices;
    for (int path = 0; path < cuda::kNumProductPaths; ++path) {
      for (const int variant : {0, 1, 2, 3, 4, 7, 8, 64, 128, 256}) {
        const ProductChoice choice{static_cast<ProductPath>(path), variant};
        // Small: one of the library's kernels beside its first choice.
        if (small_tests() && choice.path == ProductPath::kLibrary && variant > 1) continue;
        if (cuda::product_choice_exists(size, choice)) choices.push_back(choice);
      }
    }
    return choices;
  }

  // Sums in any order, and tensor cores that may cut off what they cannot keep (twice the error of
  // rounding); weights that are expanded are rounded to bfloat16.
  static double bound_of(const QuantFormat& format, int64_t cols) {
    return static_cast<double>(cols + 3) * 2 * kUnitRoundoff * 1.01 +
           (format.id == FormatId::kBF16 ? 0 : 0x1p-8 * 1.01);
  }

  // Of random tokens and rows.
  void expect_products(const PaddedTensor& y, const std::vector<float>& weights, int64_t rows,
                       const std::vector<double>& inputs, int64_t cols,
                       const std::vector<int32_t>& offsets, double relative) {
    EXPECT_TRUE(y.gaps_untouched());
    for (const uint32_t bits : y.bits()) ASSERT_FALSE(std::isnan(std::bit_cast<float>(bits)));
    for (int i = 0; i < 400; ++i) {
      const int64_t t = random.integer(0, offsets.back() - 1), r = random.integer(0, rows - 1);
      const int64_t expert =
          std::upper_bound(offsets.begin(), offsets.end(), t) - offsets.begin() - 1;
      const auto expected =
          reference::dot(&weights[(expert * rows + r) * cols], &inputs[t * cols], cols);
      ASSERT_LE(std::fabs(y.row(t)[r] - expected.value),
                relative * expected.magnitude + static_cast<double>(cols) * 0x1p-126)
          << "token " << t << ", row " << r << ": " << y.row(t)[r] << " for " << expected.value;
    }
  }

  // offsets of one expert: a matrix. `seen`: paths that could be taken.
  void check(FormatId id, int64_t rows, int64_t cols, const std::vector<int32_t>& offsets,
             bool grouped, std::set<ProductPath>& seen) {
    const auto experts = static_cast<int64_t>(offsets.size()) - 1;
    const int64_t tokens = offsets.back();
    const Weight weight =
        random_weight(random, id, grouped ? Shape{experts, rows, cols} : Shape{rows, cols});
    const std::vector<float> expanded = reference::expand(weight);
    PaddedTensor x({tokens, cols}, random.integer(0, 3));
    x.fill_normal(random);
    Workspace::Scope scope(workspace);
    const LinearInput input =
        prepare_linear_input(stream, workspace, x, ActivationPrecision::kBF16);
    const std::vector<double> inputs = reference::rounded_inputs(input, false, *weight.format);
    const Weight in_rows = on_target(weight);
    for (const bool tiles : {false, true}) {
      if (tiles && tile_format(*weight.format, cols) == nullptr) continue;
      const Weight w = tiles ? cuda::pack_tiles(in_rows) : in_rows;
      cuda::Products products = cuda::products_of(w, input);
      products.experts = grouped ? static_cast<int>(experts) : 0;
      const cuda::PathSet possible = cuda::possible_paths(stream, products);
      const ProductSize size{.kind = grouped ? ProductKind::kExperts : ProductKind::kMatrix,
                             .format = id,
                             .tiles = in_tiles(*w.format),
                             .experts = grouped ? experts : 0,
                             .rows = rows,
                             .cols = cols,
                             .tokens = tokens};
      for (const ProductChoice choice : choices_of(size)) {
        if (!possible.has(choice.path)) continue;
        seen.insert(choice.path);
        SCOPED_TRACE(fmt::format("{} [{}, {}, {}], {} tokens, by {}", w.format->name, size.experts,
                                 rows, cols, tokens, cuda::to_string(choice)));
        ProductTable table("any", 1, 0);
        table.add(size, choice);
        const ProductTableScope by_force(table);
        PaddedTensor y({tokens, rows}, random.integer(0, 3));
        if (grouped) {
          grouped_linear(stream, w, input, offsets, y);
        } else {
          linear(stream, w, input, y);
        }
        expect_products(y, expanded, rows, inputs, cols, offsets, bound_of(*weight.format, cols));
        if (HasFatalFailure()) return;
      }
    }
  }
};

constexpr FormatId kFormats[] = {
    FormatId::kBF16,   FormatId::kF16,   FormatId::kQ8_0,      FormatId::kQ4_0,     FormatId::kQ4K,
    FormatId::kW4G128, FormatId::kW4G64, FormatId::kW4G32Asym, FormatId::kW4G64F32, FormatId::kW8C};

TEST_P(ProductPathsTest, OfMatricesMatchReference) {
  std::set<ProductPath> seen;
  for (const FormatId id : kFormats) {
    for (const int32_t tokens : {1, 9, 37, 150, 333}) {
      if (small_tests() && tokens != 9 && tokens != 150) continue;
      const int64_t cols = random.pick<int64_t>({256, 512, small_tests() ? 256 : 1280});
      const int64_t rows = small_tests() ? random.pick<int64_t>({41, 72})
                                         : random.pick<int64_t>({41, 128, 200, 530});
      check(id, rows, cols, {0, tokens}, false, seen);
      if (HasFatalFailure()) return;
    }
  }
  if (!stream.cuda().overlaps_kernels()) return;
  for (const ProductPath path :
       {ProductPath::kFewRows, ProductPath::kStream, ProductPath::kFewTokens, ProductPath::kTiles,
        ProductPath::kLibrary, ProductPath::kExact}) {
    EXPECT_EQ(seen.count(path), 1u) << cuda::to_string({path});
  }
}

TEST_P(ProductPathsTest, OfExpertsMatchReference) {
  std::set<ProductPath> seen;
  const std::vector<std::vector<int32_t>> counts = {
      {0, 1, 0, 1, 1, 0, 2}, {0, 0, 19, 0, 0}, {0, 66, 0, 1, 3}, {300, 64, 65, 0, 127, 1, 128}};
  for (const FormatId id : kFormats) {
    for (const auto& of_experts : counts) {
      if (small_tests() && &of_experts != &counts[0] && &of_experts != &counts[2]) continue;
      std::vector<int32_t> offsets(1, 0);
      for (const int32_t count : of_experts) offsets.push_back(offsets.back() + count);
      const int64_t rows = random.pick<int64_t>({41, 128, small_tests() ? 41 : 173});
      check(id, rows, random.pick<int64_t>({256, 512}), offsets, true, seen);
      if (HasFatalFailure()) return;
    }
  }
  if (!stream.cuda().overlaps_kernels()) return;
  EXPECT_EQ(seen, (std::set<ProductPath>{ProductPath::kStream, ProductPath::kFewTokens,
                                         ProductPath::kTiles, ProductPath::kExact}));
}

// Sums of integers are exact: all paths have the same bits.
TEST_P(ProductPathsTest, OfCodesAreTheSameBits) {
  if (!stream.cuda().overlaps_kernels()) GTEST_SKIP() << "for devices from Hopper on";
  constexpr InputRounding kPerToken{ActivationPrecision::kInt8,
                                    {.per_block = false, .per_token = true}};
  for (const int64_t experts : {int64_t{0}, int64_t{5}}) {
    for (const int64_t tokens : {1, 9, 63, 200, 400}) {
      if (small_tests() && (tokens == 1 || tokens == 400)) continue;
      const int64_t rows = random.pick<int64_t>({37, 128, 300});
      const int64_t cols = random.pick<int64_t>({96, 256, 544});
      const Weight weight = cuda::pack_tiles(on_target(random_weight(
          random, FormatId::kW8C, experts > 0 ? Shape{experts, rows, cols} : Shape{rows, cols})));
      PaddedTensor x({tokens, cols}, 0);
      x.fill_normal(random);
      Workspace::Scope scope(workspace);
      const LinearInput input = prepare_linear_input(stream, workspace, x, kPerToken);
      ASSERT_EQ(input.token_codes.rank(), 2);
      std::vector<int32_t> offsets(1, 0);
      for (int64_t e = 0; e < experts; ++e) {
        offsets.push_back(e == experts - 1
                              ? static_cast<int32_t>(tokens)
                              : static_cast<int32_t>(random.integer(offsets.back(), tokens)));
      }
      const ProductSize size{.kind = experts > 0 ? ProductKind::kExperts : ProductKind::kMatrix,
                             .format = FormatId::kW8C,
                             .tiles = true,
                             .codes = true,
                             .experts = experts,
                             .rows = rows,
                             .cols = cols,
                             .tokens = tokens};
      std::vector<uint32_t> first;
      for (const ProductChoice choice : choices_of(size)) {
        ProductTable table("any", 1, 0);
        table.add(size, choice);
        const ProductTableScope by_force(table);
        PaddedTensor y({tokens, rows}, 2);
        if (experts > 0) {
          grouped_linear(stream, weight, input, offsets, y);
        } else {
          linear(stream, weight, input, y);
        }
        EXPECT_TRUE(y.gaps_untouched());
        if (first.empty()) first = y.bits();
        ASSERT_EQ(y.bits(), first) << cuda::to_string(choice) << ", " << experts << " experts, ["
                                   << rows << ", " << cols << "], " << tokens << " tokens";
      }
    }
  }
}

// A table changes nothing there: a token's results are those that it has alone.
TEST_P(ProductPathsTest, ADeterministicStreamKeepsItsOwn) {
  constexpr int64_t kRows = 200, kCols = 512, kTokens = 70;
  const Weight w = on_target(random_weight(random, FormatId::kBF16, {kRows, kCols}));
  PaddedTensor x({kTokens, kCols}, 0);
  x.fill_normal(random);
  const auto multiply = [&](int64_t tokens) {
    Workspace::Scope scope(workspace);
    PaddedTensor y({tokens, kRows}, 1);
    linear(stream, w,
           prepare_linear_input(stream, workspace, x.view().rows(0, tokens),
                                ActivationPrecision::kBF16),
           y);
    std::vector<uint32_t> bits = y.bits();
    bits.resize(kRows);
    return bits;
  };
  stream.cuda().set_deterministic(true);
  const std::vector<uint32_t> alone = multiply(1);
  ProductTable table("any", 1, 0);
  table.add({.format = FormatId::kBF16, .rows = kRows, .cols = kCols, .tokens = 1},
            {ProductPath::kExact});
  table.add({.format = FormatId::kBF16, .rows = kRows, .cols = kCols, .tokens = kTokens},
            {ProductPath::kLibrary});
  const ProductTableScope by_force(table);
  EXPECT_EQ(multiply(1), alone);
  EXPECT_EQ(multiply(kTokens), alone);
}

// Nor do mates change a bit there, of products of matrices and of experts.
TEST_P(ProductPathsTest, MatesChangeNothingOnADeterministicStream) {
  stream.cuda().set_deterministic(true);
  for (const FormatId id :
       {FormatId::kBF16, FormatId::kW4G128, FormatId::kW4G64, FormatId::kW8C, FormatId::kQ8_0}) {
    for (const bool routed : {false, true}) {
      const int64_t most = small_tests() ? 50 : 150, middle = most / 2;
      const int64_t rows = random.pick<int64_t>({41, 128, 200, 530});
      const int64_t cols = random.pick<int64_t>({256, 512, 1280});
      SCOPED_TRACE(fmt::format("{}, [{}, {}], {}", quant_format(id).name, rows, cols,
                               routed ? "experts" : "a matrix"));
      const Weight w = cuda::pack_tiles(
          on_target(random_weight(random, id, routed ? Shape{3, rows, cols} : Shape{rows, cols})));
      PaddedTensor x({most, cols}, 0);
      x.fill_normal(random);
      // offsets: of three experts.
      const auto multiply = [&](int64_t first, std::vector<int32_t> offsets, PaddedTensor& y) {
        Workspace::Scope scope(workspace);
        const LinearInput input = prepare_linear_input(
            stream, workspace, x.view().rows(first, offsets.back()), ActivationPrecision::kBF16);
        if (routed) {
          Tensor there(DType::kI32, {static_cast<int64_t>(offsets.size())}, device);
          std::copy(offsets.begin(), offsets.end(), there.data<int32_t>());
          grouped_linear(stream, w, input, there.view(), y);
        } else {
          linear(stream, w, input, y);
        }
        EXPECT_TRUE(y.gaps_untouched());
      };
      PaddedTensor all({most, rows}, 1);
      multiply(0,
               {0, static_cast<int32_t>(middle), static_cast<int32_t>(middle),
                static_cast<int32_t>(most)},
               all);
      for (const int32_t count : {1, 2, 9, 17, 33}) {
        if (count > middle) continue;
        const bool last = random.integer(0, 1) == 1;  // of the experts, or else the first one
        const int64_t first =
            last ? random.integer(middle, most - count) : random.integer(0, middle - count);
        PaddedTensor some({count, rows}, 2);
        multiply(first,
                 last ? std::vector<int32_t>{0, 0, 0, count}
                      : std::vector<int32_t>{0, count, count, count},
                 some);
        for (int64_t t = 0; t < count; ++t) {
          for (int64_t r = 0; r < rows; ++r) {
            ASSERT_EQ(std::bit_cast<uint32_t>(some.row(t)[r]),
                      std::bit_cast<uint32_t>(all.row(first + t)[r]))
                << count << " tokens, row " << r;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ProductPathsTest, testing::Values(OpTarget{.cuda = true}),
                         target_name);

}  // namespace
}  // namespace braid

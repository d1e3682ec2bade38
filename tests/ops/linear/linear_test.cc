#include "ops/linear/linear.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/linear/random_weight.h"
#include "ops/op_test.h"
#include "reference/linear.h"

namespace braid {
namespace {

constexpr ActivationPrecision kPrecisions[] = {
    ActivationPrecision::kF32, ActivationPrecision::kBF16, ActivationPrecision::kInt8};

std::vector<int64_t> widths(const QuantFormat& format) {
  if (format.plain()) return {1, 2, 7, 15, 16, 17, 31, 32, 33, 100, 256, 257, 288, 640};
  if (format.block_elements == 32) return {32, 64, 96, 256, 512, 544, 640, 768};
  if (format.block_elements == 64) return {64, 128, 192, 576, 640, 768};
  if (format.block_elements == 128) return {128, 256, 384, 640, 1024};
  return {256, 512, 768, 1024};
}

// Inputs that weights of any format can read.
constexpr Int8Scales kAllScales{.per_block = true, .per_token = true};

// The largest error of Σ w x relative to Σ |w x|. Blocks are accumulated in runs of 16 columns:
// each term takes part in at most 16 additions of its run, one per later run, and in the rounding
// of its own product. Plain elements are accumulated over every 4th column or fewer, then the at
// most 16 sums: one addition for each column of the chain, 4 at the end.
double float_bound(const QuantFormat& format, int64_t cols) {
  const double additions = format.plain() ? std::ceil(static_cast<double>(cols) / 4) + 4
                                          : 16 + static_cast<double>(cols) / 16;
  return (additions + 3) * kUnitRoundoff * 1.01;
}
// For int8, relative to Σ (|w| + 2 |min|) |x|, which is at least the sum of the two parts that are
// added up: dot products are exact; scaling and joining the (at most two) groups and mins of 32
// columns takes at most seven roundings, the input's scale one, the reference's own weight one;
// then one addition per later 32 columns.
double int8_bound(int64_t cols) {
  return (static_cast<double>(cols) / 32 + 10) * kUnitRoundoff * 1.01;
}
// On a CUDA device sums are taken in any order, and tensor cores may cut off what they cannot keep
// (twice the error of rounding); quantised and float16 weights are rounded to bfloat16 where inputs
// are.
double cuda_bound(const QuantFormat& format, const LinearInput& input, int64_t cols) {
  const bool rounded = input.precision == ActivationPrecision::kBF16 &&
                       format.id != FormatId::kF32 && format.id != FormatId::kBF16;
  return static_cast<double>(cols + 1) * 2 * kUnitRoundoff * 1.01 + (rounded ? 0x1p-8 * 1.01 : 0);
}

// Codes are rounded to nearest: half a step, and three roundings of a number up to 127.
constexpr double kHalfStep = 0.5 + 127 * 4 * kUnitRoundoff;

class LinearTest : public OpTest {
 protected:
  // On a CUDA device one scale a token is for tiles: token_codes_test.cc.
  Int8Scales scales() const { return on_cuda() ? Int8Scales{} : kAllScales; }

  PaddedTensor multiply(const Weight& w, const TensorView& x, ActivationPrecision precision) {
    PaddedTensor y({x.dim(0), w.rows()}, 3);
    Workspace::Scope scope(workspace);
    linear(stream, w, prepare_linear_input(stream, workspace, x, precision, scales()), y);
    return y;
  }
};

void expect_same_bits(const float* expected, const float* actual, int64_t count,
                      const std::string& where) {
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(expected[i]), std::bit_cast<uint32_t>(actual[i]))
        << where << " output " << i << ": " << expected[i] << " and " << actual[i];
  }
}

TEST_P(LinearTest, MatchesReferenceAtEverySizeAndPosition) {
  // On a CUDA device up to 8 tokens have the same sums, however many there are.
  const int64_t kTokens = on_cuda() ? 8 : 33;
  constexpr int64_t kRows = 67;
  for (int id = 0; id < kNumFormats; ++id) {
    const QuantFormat& format = quant_format(static_cast<FormatId>(id));
    const int64_t only = small_tests() ? random.integer(0, std::ssize(widths(format)) - 1) : -1;
    for (const int64_t cols : widths(format)) {
      if (only >= 0 && cols != widths(format)[static_cast<size_t>(only)]) continue;
      const Weight weight = random_weight(random, format.id, {kRows, cols});
      const std::vector<float> expanded = reference::expand(weight);
      std::vector<float> mins(expanded.size());
      if (!format.plain() && block_fields(format.id).has_min) {
        mins = reference::expand(mins_of(weight));
      }
      const Weight w = on_target(weight);
      PaddedTensor x({kTokens, cols}, random.integer(0, 5));
      x.fill_normal(random, random.pick({0.01f, 1.0f, 30.0f}));
      for (const ActivationPrecision precision : kPrecisions) {
        SCOPED_TRACE(fmt::format("{} × {} columns, precision {}", format.name, cols,
                                 static_cast<int>(precision)));
        Workspace::Scope scope(workspace);
        const LinearInput input = prepare_linear_input(stream, workspace, x, precision, scales());
        const bool int8 = input.precision == ActivationPrecision::kInt8 && !format.plain();
        const std::vector<double> inputs = reference::rounded_inputs(input, int8, format);
        PaddedTensor y({kTokens, kRows}, 3);
        linear(stream, w, input, y);
        EXPECT_TRUE(y.gaps_untouched());
        const double relative =
            on_cuda() ? cuda_bound(format, input, cols) : float_bound(format, cols);
        for (int64_t t = 0; t < kTokens; ++t) {
          for (int64_t r = 0; r < kRows; ++r) {
            const auto expected = reference::dot(&expanded[r * cols], &inputs[t * cols], cols);
            double bound = relative * expected.magnitude;
            if (int8) {
              const auto offset = reference::dot(&mins[r * cols], &inputs[t * cols], cols);
              bound = int8_bound(cols) * (expected.magnitude + 2 * offset.magnitude);
            }
            // Subnormal products may count as zero.
            bound += static_cast<double>(cols) * 0x1p-126;
            ASSERT_LE(std::fabs(y.row(t)[r] - expected.value), bound)
                << "token " << t << " row " << r << ": " << y.row(t)[r] << " for "
                << expected.value;
            if (int8) {
              double exact = 0, step = 0;
              for (int64_t c = 0; c < cols; ++c) {
                const double weight = expanded[r * cols + c];
                exact += weight * x.row(t)[c];
                step += std::fabs(weight) * reference::input_scale(input, format, t, c);
              }
              ASSERT_LE(std::fabs(y.row(t)[r] - exact), bound + kHalfStep * step);
            }
          }
        }
        const auto expect_part = [&](int64_t tokens, int64_t rows) {
          const int64_t first_token = random.integer(0, kTokens - tokens);
          const int64_t first_row = random.integer(0, kRows - rows);
          const PaddedTensor part = multiply(w.slice_rows(first_row, rows),
                                             x.view().rows(first_token, tokens), precision);
          EXPECT_TRUE(part.gaps_untouched());
          // There the order of a sum depends on the number of rows.
          const bool same_order = !on_cuda() || rows == kRows;
          for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t r = 0; r < rows && !same_order; ++r) {
              const auto expected = reference::dot(&expanded[(first_row + r) * cols],
                                                   &inputs[(first_token + t) * cols], cols);
              ASSERT_LE(std::fabs(part.row(t)[r] - expected.value),
                        relative * expected.magnitude + static_cast<double>(cols) * 0x1p-126)
                  << tokens << " tokens from " << first_token << ", " << rows << " rows from "
                  << first_row << ", token " << t << " row " << r;
            }
            if (!same_order) continue;
            expect_same_bits(y.row(first_token + t) + first_row, part.row(t), rows,
                             fmt::format("{} tokens from {}, {} rows from {}, token {}", tokens,
                                         first_token, rows, first_row, t));
          }
        };
        for (const int64_t tokens : {0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33}) {
          if (tokens > kTokens) break;
          if (small_tests() && tokens != 1) continue;
          expect_part(tokens, random.pick<int64_t>({1, 5, 31, 64}));
          if (on_cuda()) expect_part(tokens, kRows);
        }
        for (const int64_t rows : {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 67}) {
          if (small_tests() && rows != 9) continue;
          expect_part(random.pick<int64_t>({1, 2, 5}), rows);
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(LinearTest, ManyTokensMatchReference) {
  const int64_t kTokens = 131, kRows = small_tests() ? 133 : 421;
  for (int id = 0; id < kNumFormats; ++id) {
    const QuantFormat& format = quant_format(static_cast<FormatId>(id));
    int64_t cols = format.block_elements > 32 ? 512 : random.pick<int64_t>({512, 544, 96});
    if (small_tests()) cols = format.block_elements > 32 ? 256 : 288;
    const Weight weight = random_weight(random, format.id, {kRows, cols});
    const std::vector<float> expanded = reference::expand(weight);
    const Weight w = on_target(weight);
    PaddedTensor x({kTokens, cols}, 0);
    x.fill_normal(random);
    for (const ActivationPrecision precision :
         {ActivationPrecision::kF32, ActivationPrecision::kBF16}) {
      for (const int64_t tokens : {int64_t{65}, kTokens}) {
        if (small_tests() && (tokens == 65) != (precision == ActivationPrecision::kF32)) continue;
        SCOPED_TRACE(fmt::format("{} × {} columns, {} tokens, precision {}", format.name, cols,
                                 tokens, static_cast<int>(precision)));
        Workspace::Scope scope(workspace);
        const LinearInput input =
            prepare_linear_input(stream, workspace, x.view().rows(0, tokens), precision);
        const std::vector<double> inputs = reference::rounded_inputs(input, false, format);
        PaddedTensor y({tokens, kRows}, random.integer(0, 4));
        linear(stream, w, input, y);
        EXPECT_TRUE(y.gaps_untouched());
        const double relative =
            on_cuda() ? cuda_bound(format, input, cols) : float_bound(format, cols);
        for (int i = 0; i < 3000; ++i) {
          const int64_t t = random.integer(0, tokens - 1), r = random.integer(0, kRows - 1);
          const auto expected = reference::dot(&expanded[r * cols], &inputs[t * cols], cols);
          ASSERT_LE(std::fabs(y.row(t)[r] - expected.value),
                    relative * expected.magnitude + static_cast<double>(cols) * 0x1p-126)
              << "token " << t << " row " << r << ": " << y.row(t)[r] << " for " << expected.value;
        }
        for (const uint32_t bits : y.bits()) ASSERT_FALSE(std::isnan(std::bit_cast<float>(bits)));
      }
    }
  }
}

TEST_P(LinearTest, ExpertsMatchReference) {
  // Few tokens on average and many; experts of one tile, of several, of none.
  const std::vector<std::vector<int>> cases = {
      {0, 0, 0, 0, 0, 0, 1},  {0, 1, 0, 1, 1, 0, 2},   {0, 0, 0, 19, 0, 0, 0},
      {40, 0, 0, 0, 0, 0, 9}, {0, 5, 0, 130, 2, 3, 0}, {300, 64, 65, 0, 127, 1, 128}};
  for (int id = 0; id < kNumFormats; ++id) {
    const QuantFormat& format = quant_format(static_cast<FormatId>(id));
    int64_t cols = format.block_elements > 32 ? 512 : random.pick<int64_t>({256, 352, 96});
    if (small_tests()) cols = format.block_elements > 32 ? 256 : 288;
    const int64_t rows = small_tests() ? 133 : random.pick<int64_t>({41, 128, 173});
    const Weight weight = random_weight(random, format.id, {7, rows, cols});
    const std::vector<float> expanded = reference::expand(weight);
    const Weight w = on_target(weight);
    for (const auto& counts : cases) {
      if (small_tests() && &counts != &cases[1] && &counts != &cases[4]) continue;
      std::vector<int32_t> offsets(1, 0);
      for (const int count : counts) offsets.push_back(offsets.back() + count);
      PaddedTensor x({offsets.back(), cols}, 2);
      x.fill_normal(random);
      for (const ActivationPrecision precision :
           {ActivationPrecision::kF32, ActivationPrecision::kBF16}) {
        SCOPED_TRACE(fmt::format("{} [{}, {}], {} tokens, precision {}", format.name, rows, cols,
                                 offsets.back(), static_cast<int>(precision)));
        Workspace::Scope scope(workspace);
        const LinearInput input = prepare_linear_input(stream, workspace, x, precision);
        const std::vector<double> inputs = reference::rounded_inputs(input, false, format);
        PaddedTensor y({offsets.back(), rows}, 3);
        grouped_linear(stream, w, input, offsets, y);
        EXPECT_TRUE(y.gaps_untouched());
        for (const uint32_t bits : y.bits()) ASSERT_FALSE(std::isnan(std::bit_cast<float>(bits)));
        const double relative =
            on_cuda() ? cuda_bound(format, input, cols) : float_bound(format, cols);
        for (int i = 0; i < 1500; ++i) {
          const int64_t t = random.integer(0, offsets.back() - 1), r = random.integer(0, rows - 1);
          const int64_t expert =
              std::upper_bound(offsets.begin(), offsets.end(), t) - offsets.begin() - 1;
          const auto expected =
              reference::dot(&expanded[(expert * rows + r) * cols], &inputs[t * cols], cols);
          ASSERT_LE(std::fabs(y.row(t)[r] - expected.value),
                    relative * expected.magnitude + static_cast<double>(cols) * 0x1p-126)
              << "expert " << expert << " token " << t << " row " << r << ": " << y.row(t)[r]
              << " for " << expected.value;
        }
      }
    }
  }
}

// What holds of the CPU alone: sums in one order, inputs in int8.
class LinearOnCpuTest : public LinearTest {};

TEST_P(LinearOnCpuTest, DoesNotDependOnThreads) {
  constexpr int64_t kTokens = 131, kRows = 421, kCols = 512;
  for (int id = 0; id < kNumFormats; ++id) {
    const Weight w = random_weight(random, static_cast<FormatId>(id), {kRows, kCols});
    PaddedTensor x({kTokens, kCols}, 0);
    x.fill_normal(random);
    for (const ActivationPrecision precision : kPrecisions) {
      for (const int64_t tokens : {int64_t{1}, int64_t{6}, kTokens}) {
        std::vector<uint32_t> first;
        for (const int threads : {1, 2, 3}) {
          ThreadPool threads_pool({.num_threads = threads});
          Stream threads_stream(threads_pool);
          Workspace::Scope scope(workspace);
          PaddedTensor y({tokens, kRows}, 1);
          const LinearInput input = prepare_linear_input(
              threads_stream, workspace, x.view().rows(0, tokens), precision, kAllScales);
          linear(threads_stream, w, input, y);
          if (first.empty()) first = y.bits();
          ASSERT_EQ(y.bits(), first) << w.format->name << ", " << threads << " threads";
        }
      }
    }
  }
}

TEST_P(LinearOnCpuTest, ExpertsMatchTheirOwnProducts) {
  constexpr int64_t kExperts = 7, kRows = 41, kCols = 256;
  // Tokens of each expert: none at all, all with one, empty ones at either end, several tiles.
  const std::vector<std::vector<int>> cases = {{0, 0, 0, 0, 0, 0, 0},  {0, 0, 0, 19, 0, 0, 0},
                                               {70, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 1},
                                               {1, 1, 1, 1, 1, 1, 1},  {0, 5, 0, 130, 2, 3, 0}};
  for (int id = 0; id < kNumFormats; ++id) {
    const Weight w = random_weight(random, static_cast<FormatId>(id), {kExperts, kRows, kCols});
    for (const auto& counts : cases) {
      std::vector<int32_t> offsets(1, 0);
      for (const int count : counts) offsets.push_back(offsets.back() + count);
      PaddedTensor x({offsets.back(), kCols}, 2);
      x.fill_normal(random);
      for (const ActivationPrecision precision : kPrecisions) {
        Workspace::Scope scope(workspace);
        const LinearInput input = prepare_linear_input(stream, workspace, x, precision, kAllScales);
        PaddedTensor y({offsets.back(), kRows}, 3);
        grouped_linear(stream, w, input, offsets, y);
        EXPECT_TRUE(y.gaps_untouched());
        for (int64_t e = 0; e < kExperts; ++e) {
          Weight expert = w;
          expert.shape = {kRows, kCols};
          expert.data = w.data + e * kRows * w.row_bytes();
          const PaddedTensor alone =
              multiply(expert, x.view().rows(offsets[e], counts[e]), precision);
          for (int64_t t = 0; t < counts[e]; ++t) {
            expect_same_bits(alone.row(t), y.row(offsets[e] + t), kRows,
                             fmt::format("{} expert {}", w.format->name, e));
          }
        }
      }
    }
  }
}

TEST_P(LinearOnCpuTest, ManyExpertsFindTheirTokens) {
  constexpr int64_t kRows = 33, kCols = 64;
  for (const int64_t experts : {64, 65, 300}) {
    const Weight w = random_weight(random, FormatId::kQ8_0, {experts, kRows, kCols});
    std::vector<int32_t> offsets(1, 0);
    for (int64_t e = 0; e < experts; ++e) {
      offsets.push_back(offsets.back() + static_cast<int32_t>(random.pick({0, 0, 0, 1, 2, 70})));
    }
    PaddedTensor x({offsets.back(), kCols}, 0);
    x.fill_normal(random);
    Workspace::Scope scope(workspace);
    const LinearInput input =
        prepare_linear_input(stream, workspace, x, ActivationPrecision::kInt8);
    PaddedTensor y({offsets.back(), kRows}, 3);
    grouped_linear(stream, w, input, offsets, y);
    EXPECT_TRUE(y.gaps_untouched());
    for (int64_t e = 0; e < experts; ++e) {
      Weight expert = w;
      expert.shape = {kRows, kCols};
      expert.data = w.data + e * kRows * w.row_bytes();
      const int64_t count = offsets[e + 1] - offsets[e];
      const PaddedTensor alone =
          multiply(expert, x.view().rows(offsets[e], count), ActivationPrecision::kInt8);
      for (int64_t t = 0; t < count; ++t) {
        expect_same_bits(alone.row(t), y.row(offsets[e] + t), kRows,
                         fmt::format("expert {} of {}", e, experts));
      }
    }
  }
}

TEST_P(LinearOnCpuTest, RoundsInputsToInt8) {
  PaddedTensor x({40, 96}, 1);
  x.fill_normal(random, 3);
  std::fill_n(x.row(0), 32, 0.0f);       // all zero
  std::fill_n(x.row(1), 32, -2.5f);      // all at the edge
  std::fill_n(x.row(2), 32, 0x1p-110f);  // too small to matter
  const LinearInput input = prepare_linear_input(stream, workspace, x, ActivationPrecision::kInt8);
  ASSERT_EQ(input.precision, ActivationPrecision::kInt8);
  for (int64_t t = 0; t < 40; ++t) {
    const int8_t* codes = input.codes.row<int8_t>(t);
    for (int64_t c = 0; c < 96; ++c) {
      const double scale = input.scales.row<float>(t)[c / 32];
      EXPECT_LE(std::abs(codes[c]), 127);
      EXPECT_LE(std::fabs(codes[c] * scale - x.row(t)[c]), scale * kHalfStep + 0x1p-100);
    }
    for (int64_t group = 0; group < 6; ++group) {
      EXPECT_EQ(input.sums.row<int32_t>(t)[group],
                std::accumulate(codes + 16 * group, codes + 16 * group + 16, 0));
    }
  }
  EXPECT_EQ(input.codes.row<int8_t>(1)[0], -127);
  EXPECT_EQ(input.scales.row<float>(2)[0], 0.0f);
}

TEST_P(LinearOnCpuTest, RoundsInputsToInt8PerToken) {
  PaddedTensor x({40, 96}, 1);
  x.fill_normal(random, 3);
  std::fill_n(x.row(0), 96, 0.0f);       // all zero
  std::fill_n(x.row(1), 96, -2.5f);      // all at the edge
  std::fill_n(x.row(2), 96, 0x1p-110f);  // too small to matter
  const LinearInput input =
      prepare_linear_input(stream, workspace, x, ActivationPrecision::kInt8, kAllScales);
  const float* scales = input.token_scales.data<float>();
  for (int64_t t = 0; t < 40; ++t) {
    const int8_t* codes = input.token_codes.row<int8_t>(t);
    float peak = 0;
    for (int64_t c = 0; c < 96; ++c) {
      peak = std::max(peak, std::fabs(x.row(t)[c]));
      EXPECT_LE(std::abs(codes[c]), 127);
      EXPECT_LE(std::fabs(codes[c] * double{scales[t]} - x.row(t)[c]),
                scales[t] * kHalfStep + 0x1p-100);
    }
    if (t != 2) {
      EXPECT_EQ(scales[t], peak / 127);
    }
  }
  EXPECT_EQ(input.token_codes.row<int8_t>(1)[95], -127);
  EXPECT_EQ(scales[2], 0.0f);
}

// Sums of codes are exact, so every kernel gives the same bits: the sum, rounded to float32, times
// the product of the scales.
TEST_P(LinearOnCpuTest, ProductsPerTokenAreExactBeforeScaling) {
  for (const int64_t cols : {32, 64, 96, 160, 704, 4096}) {
    const Weight w = random_weight(random, FormatId::kW8C, {37, cols});
    PaddedTensor x({19, cols}, 2);
    x.fill_normal(random);
    const LinearInput input =
        prepare_linear_input(stream, workspace, x, ActivationPrecision::kInt8, kAllScales);
    for (const Weight& layout : {w, in_panels(w)}) {
      PaddedTensor y({19, 37}, 3);
      linear(stream, layout, input, y);
      for (int64_t t = 0; t < 19; ++t) {
        for (int64_t r = 0; r < 37; ++r) {
          const ChannelRow row = read_channel_row(w.row(r));
          int32_t sum = 0;
          for (int64_t c = 0; c < cols; ++c) {
            sum += row.codes[c] * input.token_codes.row<int8_t>(t)[c];
          }
          const float scale = input.token_scales.data<float>()[t] * row.scale;
          ASSERT_EQ(y.row(t)[r], static_cast<float>(sum) * scale) << cols << " " << t << " " << r;
        }
      }
    }
  }
}

// The largest sums that rows may have, of both signs.
TEST_P(LinearOnCpuTest, ProductsPerTokenDoNotOverflow) {
  constexpr int64_t kCols = 65536;
  std::vector<int8_t> codes(kCols, -128);
  Weight w{.format = &quant_format(FormatId::kW8C), .shape = {2, kCols}};
  std::vector<std::byte> rows(static_cast<size_t>(w.size_bytes()));
  write_channel_row(1, codes.data(), kCols, rows.data());
  std::fill(codes.begin(), codes.end(), int8_t{127});
  write_channel_row(1, codes.data(), kCols, rows.data() + w.row_bytes());
  w.data = rows.data();
  for (const float value : {127.0f, -127.0f}) {
    PaddedTensor x({1, kCols}, 0);
    std::fill_n(x.row(0), kCols, value);
    for (const Weight& layout : {w, in_panels(w)}) {
      const PaddedTensor y = multiply(layout, x, ActivationPrecision::kInt8);
      EXPECT_EQ(y.row(0)[0], -128 * value * kCols);
      EXPECT_EQ(y.row(0)[1], 127 * value * kCols);
    }
  }
}

// Inputs without the scales that a format reads are taken as they are.
TEST_P(LinearOnCpuTest, WeightsWithoutTheirScalesTakeFloat32) {
  PaddedTensor x({3, 64}, 0);
  x.fill_normal(random);
  for (const FormatId id : {FormatId::kW8C, FormatId::kQ4_0}) {
    const Weight w = random_weight(random, id, {9, 64});
    const bool per_token = w.format->has_row_header();
    const LinearInput input =
        prepare_linear_input(stream, workspace, x, ActivationPrecision::kInt8,
                             {.per_block = per_token, .per_token = !per_token});
    PaddedTensor y({3, 9}, 3);
    linear(stream, w, input, y);
    EXPECT_EQ(y.bits(), multiply(w, x, ActivationPrecision::kF32).bits());
  }
}

TEST_P(LinearTest, NotFiniteInputsSpoilTheirTokenOnly) {
  const FormatId format =
      on_cuda() ? FormatId::kQ4_0
                : random.pick({FormatId::kQ4_0, FormatId::kW4G64Asym, FormatId::kW8C});
  const Weight w = on_target(random_weight(random, format, {9, 64}));
  for (const float bad : {kNan, std::numeric_limits<float>::infinity()}) {
    for (const ActivationPrecision precision : kPrecisions) {
      PaddedTensor x({3, 64}, 0);
      x.fill_normal(random);
      x.row(1)[random.integer(0, 63)] = bad;
      const PaddedTensor y = multiply(w, x, precision);
      for (int64_t r = 0; r < 9; ++r) {
        EXPECT_TRUE(std::isfinite(y.row(0)[r]) && std::isfinite(y.row(2)[r]));
        EXPECT_FALSE(std::isfinite(y.row(1)[r]));
      }
    }
  }
}

TEST_P(LinearTest, WidthsThatInt8CannotSplitStayFloat32) {
  const Weight w = on_target(random_weight(random, FormatId::kF32, {5, 33}));
  PaddedTensor x({2, 33}, 0);
  x.fill_normal(random);
  const LinearInput input = prepare_linear_input(stream, workspace, x, ActivationPrecision::kInt8);
  EXPECT_EQ(input.precision, ActivationPrecision::kF32);
  EXPECT_EQ(multiply(w, x, ActivationPrecision::kInt8).bits(),
            multiply(w, x, ActivationPrecision::kF32).bits());
}

BRAID_INSTANTIATE_PER_TARGET(LinearTest);
BRAID_INSTANTIATE_PER_ISA(LinearOnCpuTest);

}  // namespace
}  // namespace braid

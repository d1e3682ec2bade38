#include "ops/conv/causal_conv.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/op_test.h"
#include "reference/conv.h"
#include "reference/elementwise.h"

namespace braid {
namespace {

class CausalConvTest : public OpTest {
 protected:
  // Rows kept of `slots` sequences, all NaN.
  static Tensor kept_rows(int64_t slots, int64_t rows, int64_t channels) {
    Tensor tensor(DType::kF32, {slots, rows, channels}, op_test_device);
    std::ranges::fill(tensor.view().span<float>(), kNan);
    return tensor;
  }
  Tensor random_weight(int64_t channels, int64_t width) {
    Tensor weight(DType::kF32, {channels, width}, op_test_device);
    for (float& w : weight.view().span<float>()) w = random.normal();
    return weight;
  }
  void run(const PaddedTensor& x, const Tensor& weight, const Tensor& kept,
           std::vector<RecurrentRows> sequences, const PaddedTensor& y) {
    RecurrentLayer layer;
    layer.conv_rows = kept;
    causal_conv_silu(stream, x, weight, layer, sequences, y);
    EXPECT_TRUE(y.gaps_untouched());
  }
  int64_t random_channels() { return random.pick({1, 3, 8, 15, 16, 33, 100, 511, 513, 1300}); }
};

bool same_bits(const float* a, const float* b, int64_t n) {
  return std::equal(a, a + n, b, [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

TEST_P(CausalConvTest, MatchesReference) {
  for (int64_t width = 1; width <= 8; ++width) {
    for (const int64_t tokens : {1, 2, 3, 7, 8, 9, 40}) {
      if (small_tests() && tokens != 1 && tokens != 9 && tokens != 40) continue;
      const int64_t channels = random_channels();
      PaddedTensor x({tokens, channels}, random.integer(0, 4));
      PaddedTensor y({tokens, channels}, random.integer(0, 4));
      x.fill_normal(random, random.pick({0.1f, 1.0f, 30.0f}));
      const Tensor weight = random_weight(channels, width);
      const Tensor kept = kept_rows(1, width - 1, channels);
      run(x, weight, kept, {{.num_rows = tokens, .fresh = true}}, y);
      for (int64_t c = 0; c < channels; ++c) {
        std::vector<float> column;
        const float* taps = weight.data<float>() + c * width;
        for (int64_t t = 0; t < tokens; ++t) {
          column.push_back(x.row(t)[c]);
          const double sum = reference::causal_conv(column, taps, width, t);
          double size = 0;
          for (int64_t j = std::max<int64_t>(0, width - 1 - t); j < width; ++j) {
            size += std::abs(double{taps[j]} * column[t - width + 1 + j]);
          }
          // Each product and addition rounds; silu is steeper than 1 nowhere by more than a tenth,
          // and has an exponential (4 units), a sum and a division of its own.
          const double expected = reference::silu(sum);
          const double bound =
              (1.1 * 2 * static_cast<double>(width) * size + 8 * std::abs(expected)) *
                  kUnitRoundoff +
              1e-36;
          ASSERT_NEAR(y.row(t)[c], expected, bound) << "channel " << c << ", row " << t;
        }
        for (int64_t i = 0; i < width - 1; ++i) {
          const int64_t t = tokens - (width - 1) + i;
          ASSERT_EQ(kept.data<float>()[i * channels + c], t < 0 ? 0 : column[t]);
        }
      }
    }
  }
}

TEST_P(CausalConvTest, SplitsGiveTheSameBits) {
  for (int64_t width = 1; width <= 8; ++width) {
    constexpr int64_t kTokens = 60;
    const int64_t channels = random_channels();
    PaddedTensor x({kTokens, channels}, 1), whole({kTokens, channels}, 2),
        y({kTokens, channels}, 3);
    x.fill_normal(random);
    const Tensor weight = random_weight(channels, width);
    const Tensor whole_kept = kept_rows(1, width - 1, channels);
    run(x, weight, whole_kept, {{.num_rows = kTokens, .fresh = true}}, whole);
    const Tensor kept = kept_rows(3, width - 1 + 2, channels);
    for (int64_t done = 0; done < kTokens;) {
      const int64_t rows = std::min(kTokens - done, random.integer(1, random.pick({1, 3, 12})));
      run(x, weight, kept, {{.first_row = done, .num_rows = rows, .slot = 1, .fresh = done == 0}},
          y);
      done += rows;
    }
    EXPECT_EQ(y.bits(), whole.bits());
    EXPECT_TRUE(
        same_bits(kept.view().row<float>(1), whole_kept.data<float>(), (width - 1) * channels));
    for (const int64_t other : {0, 2}) {
      for (int64_t i = 0; i < kept.view().row_stride(); ++i) {
        ASSERT_TRUE(std::isnan(kept.view().row<float>(other)[i]));
      }
    }
  }
}

// Logged steps of which some rows are kept: the kept rows are those of one plain run.
TEST_P(CausalConvTest, StepsBackToAnyRow) {
  for (int64_t width = 1; width <= 8; ++width) {
    constexpr int64_t kTokens = 80, kMaxLogged = 9;
    const int64_t channels = random_channels();
    PaddedTensor x({kTokens, channels}, 1), whole({kTokens, channels}, 2),
        y({kTokens, channels}, 3);
    x.fill_normal(random);
    const Tensor weight = random_weight(channels, width);
    const Tensor whole_kept = kept_rows(1, width - 1, channels);
    run(x, weight, whole_kept, {{.num_rows = kTokens, .fresh = true}}, whole);
    const Tensor kept = kept_rows(1, width - 1 + kMaxLogged, channels);
    int32_t replayed = 0;
    bool fresh = true;
    for (int64_t done = 0; done < kTokens;) {
      const int64_t rows = std::min(kTokens - done, random.integer(1, kMaxLogged));
      const bool logged = random.integer(0, 3) > 0;
      const int64_t accepted = logged ? random.integer(fresh ? 1 : 0, rows) : rows;
      run(x, weight, kept,
          {{.first_row = done,
            .num_rows = rows,
            .fresh = fresh,
            .num_replayed = replayed,
            .logged = logged}},
          y);
      for (int64_t t = done; t < done + rows; ++t) {
        ASSERT_TRUE(same_bits(y.row(t), whole.row(t), channels)) << "row " << t;
      }
      replayed = logged ? static_cast<int32_t>(accepted) : 0;
      done += accepted;
      fresh = false;
    }
    EXPECT_TRUE(same_bits(kept.data<float>() + replayed * channels, whole_kept.data<float>(),
                          (width - 1) * channels));
  }
}

TEST_P(CausalConvTest, BatchMatesAndThreadsDoNotMatter) {
  for (int round = 0; round < 6; ++round) {
    constexpr int64_t kSlots = 9, kWidth = 4, kMaxLogged = 5;
    const int64_t channels = random_channels();
    std::vector<int32_t> slots(kSlots);
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), random.engine());
    std::vector<RecurrentRows> sequences;
    int64_t tokens = 1;
    for (int64_t i = 0; i < 7; ++i) {
      RecurrentRows rows{.first_row = tokens, .slot = slots[i]};
      rows.logged = random.integer(0, 2) == 0;
      rows.fresh = random.integer(0, 2) == 0;
      if (!rows.fresh) rows.num_replayed = static_cast<int32_t>(random.integer(0, kMaxLogged));
      rows.num_rows =
          rows.logged ? random.integer(0, kMaxLogged) : random.pick<int64_t>({0, 1, 1, 2, 90});
      tokens += rows.num_rows + random.integer(0, 1);
      sequences.push_back(rows);
    }
    PaddedTensor x({tokens, channels}, 0), alone({tokens, channels}, 0);
    x.fill_normal(random);
    const Tensor weight = random_weight(channels, kWidth);
    const Tensor start = kept_rows(kSlots, kWidth - 1 + kMaxLogged, channels);
    for (const RecurrentRows& rows : sequences) {
      if (rows.fresh) continue;
      float* row = start.view().row<float>(rows.slot);
      for (int64_t i = 0; i < start.view().row_stride(); ++i) row[i] = random.normal();
    }
    const auto copy = [&] {
      Tensor tensor(DType::kF32, start.shape(), op_test_device);
      std::ranges::copy(start.view().span<float>(), tensor.data<float>());
      return tensor;
    };
    const Tensor alone_kept = copy();
    for (const RecurrentRows& rows : sequences) {
      run(x, weight, alone_kept, {rows}, alone);
      for (int64_t t = rows.first_row; t < rows.first_row + rows.num_rows; ++t) {
        for (int64_t c = 0; c < channels; ++c) ASSERT_FALSE(std::isnan(alone.row(t)[c]));
      }
    }
    for (const int threads : {1, 2, 5}) {
      OtherStream other(threads);
      const Tensor kept = copy();
      PaddedTensor y({tokens, channels}, 0);
      RecurrentLayer layer;
      layer.conv_rows = kept;
      causal_conv_silu(other, x, weight, layer, sequences, y);
      EXPECT_EQ(y.bits(), alone.bits());
      EXPECT_TRUE(
          same_bits(kept.data<float>(), alone_kept.data<float>(), kept.view().num_elements()));
    }
    // Slots of nobody are as they were.
    for (const int64_t slot : {slots[7], slots[8]}) {
      EXPECT_TRUE(std::isnan(alone_kept.view().row<float>(slot)[0]));
    }
  }
}

TEST_P(CausalConvTest, NoRows) {
  PaddedTensor x({2, 20}, 0), y({2, 20}, 0);
  x.fill_normal(random);
  const Tensor weight = random_weight(20, 4);
  const Tensor kept = kept_rows(1, 5, 20);
  run(x, weight, kept, {}, y);
  run(x, weight, kept, {{.fresh = true}, {.first_row = 2, .num_replayed = 2}}, y);
  for (const float value : kept.view().span<float>()) EXPECT_TRUE(std::isnan(value));
  EXPECT_TRUE(std::isnan(y.row(0)[0]));
}

BRAID_INSTANTIATE_PER_TARGET(CausalConvTest);

}  // namespace
}  // namespace braid

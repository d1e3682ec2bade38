// Products of weights in panels have the bits of those of the same weights in rows.

#include <fmt/format.h>

#include "ops/linear/linear.h"
#include "ops/linear/random_weight.h"
#include "ops/op_test.h"

namespace braid {
namespace {

constexpr ActivationPrecision kPrecisions[] = {
    ActivationPrecision::kF32, ActivationPrecision::kBF16, ActivationPrecision::kInt8};
constexpr int kFirstBlockFormat = static_cast<int>(FormatId::kQ8_0);

// Inputs that weights of any format can read.
constexpr Int8Scales kAllScales{.per_block = true, .per_token = true};

class PanelTest : public OpTest {
 protected:
  PaddedTensor multiply(const Weight& w, const TensorView& x, ActivationPrecision precision) {
    PaddedTensor y({x.dim(0), w.rows()}, 3);
    Workspace::Scope scope(workspace);
    linear(stream, w, prepare_linear_input(stream, workspace, x, precision, kAllScales), y);
    EXPECT_TRUE(y.gaps_untouched());
    return y;
  }
};

TEST_P(PanelTest, ProductsHaveTheBitsOfRows) {
  for (int id = kFirstBlockFormat; id < kNumFormats; ++id) {
    const QuantFormat& format = quant_format(static_cast<FormatId>(id));
    const int64_t block = format.block_elements;
    for (const int64_t rows : {1, 15, 16, 17, 33, 67, 234}) {
      // One block; an odd number of them; more than some stretches of few tokens.
      const int64_t cols =
          block * random.pick<int64_t>({1, 3, 20480 / format.block_bytes / 16 + 1});
      const Weight w = random_weight(random, format.id, {rows, cols});
      const Weight panels = in_panels(w);
      PaddedTensor x({131, cols}, random.integer(0, 5));
      x.fill_normal(random);
      std::vector<int64_t> counts = {64, 131};
      for (int64_t t = 0; t <= 17; ++t) counts.push_back(t);
      for (const ActivationPrecision precision : kPrecisions) {
        for (const int64_t tokens : counts) {
          SCOPED_TRACE(fmt::format("{} [{}, {}] x {} tokens, precision {}", panels.format->name,
                                   rows, cols, tokens, static_cast<int>(precision)));
          const TensorView input = x.view().rows(131 - tokens, tokens);
          ASSERT_EQ(multiply(w, input, precision).bits(),
                    multiply(panels, input, precision).bits());
        }
      }
    }
  }
}

TEST_P(PanelTest, SlicesHaveTheBitsOfRows) {
  for (int id = kFirstBlockFormat; id < kNumFormats; ++id) {
    const Weight w = random_weight(random, static_cast<FormatId>(id), {85, 512});
    const Weight panels = in_panels(w);
    PaddedTensor x({5, 512}, 0);
    x.fill_normal(random);
    for (const int64_t begin : {0, 16, 64, 80}) {
      const int64_t count = random.integer(1, 85 - begin);
      EXPECT_EQ(multiply(w.slice_rows(begin, count), x, ActivationPrecision::kInt8).bits(),
                multiply(panels.slice_rows(begin, count), x, ActivationPrecision::kInt8).bits());
    }
  }
}

TEST_P(PanelTest, ExpertsHaveTheBitsOfRows) {
  constexpr int64_t kExperts = 5;
  const std::vector<int32_t> offsets = {0, 1, 1, 10, 90, 93};
  for (int id = kFirstBlockFormat; id < kNumFormats; ++id) {
    for (const int64_t rows : {16, 41}) {
      const Weight w = random_weight(random, static_cast<FormatId>(id), {kExperts, rows, 256});
      const Weight panels = in_panels(w);
      PaddedTensor x({offsets.back(), 256}, 2);
      x.fill_normal(random);
      for (const ActivationPrecision precision : kPrecisions) {
        Workspace::Scope scope(workspace);
        const LinearInput input = prepare_linear_input(stream, workspace, x, precision, kAllScales);
        PaddedTensor expected({offsets.back(), rows}, 3), actual({offsets.back(), rows}, 3);
        grouped_linear(stream, w, input, offsets, expected);
        grouped_linear(stream, panels, input, offsets, actual);
        EXPECT_TRUE(actual.gaps_untouched());
        ASSERT_EQ(expected.bits(), actual.bits()) << panels.format->name;
      }
    }
  }
}

TEST_P(PanelTest, DoNotDependOnThreads) {
  for (int id = kFirstBlockFormat; id < kNumFormats; ++id) {
    const Weight w = in_panels(random_weight(random, static_cast<FormatId>(id), {421, 512}));
    PaddedTensor x({70, 512}, 0);
    x.fill_normal(random);
    for (const int64_t tokens : {1, 6, 70}) {
      const TensorView input = x.view().rows(0, tokens);
      const std::vector<uint32_t> expected = multiply(w, input, ActivationPrecision::kInt8).bits();
      for (const int threads : {1, 3}) {
        ThreadPool threads_pool({.num_threads = threads});
        Stream threads_stream(threads_pool);
        Workspace::Scope scope(workspace);
        PaddedTensor y({tokens, w.rows()}, 1);
        linear(threads_stream, w,
               prepare_linear_input(threads_stream, workspace, input, ActivationPrecision::kInt8,
                                    kAllScales),
               y);
        ASSERT_EQ(y.bits(), expected) << w.format->name << ", " << threads << " threads";
      }
    }
  }
}

BRAID_INSTANTIATE_PER_ISA(PanelTest);

}  // namespace
}  // namespace braid

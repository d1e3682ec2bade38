#include <algorithm>
#include <numeric>

#include "ops/fused/gated_mlps.h"
#include "ops/fused/prepared_input.h"
#include "ops/fused/residual.h"
#include "ops/linear/random_weight.h"
#include "ops/op_test.h"
#include "quant/cuda/pack_tiles.h"
#include "tensor/cuda/stream_state.h"

namespace braid {
namespace {

constexpr InputRounding kPerToken{ActivationPrecision::kInt8,
                                  {.per_block = false, .per_token = true}};

struct Routing {
  std::vector<int32_t> offsets, tokens;
};
// `pairs` pairs of random experts and tokens, sorted by expert; some experts have none.
Routing random_routing(Random& random, int64_t experts, int64_t pairs, int64_t tokens) {
  Routing routing;
  routing.offsets.assign(static_cast<size_t>(experts) + 1, 0);
  const int64_t used = std::max<int64_t>(1, experts - random.integer(0, experts / 2));
  for (int64_t i = 0; i < pairs; ++i) ++routing.offsets[random.integer(1, used)];
  std::partial_sum(routing.offsets.begin(), routing.offsets.end(), routing.offsets.begin());
  for (int64_t i = 0; i < pairs; ++i) {
    routing.tokens.push_back(static_cast<int32_t>(random.integer(0, tokens - 1)));
  }
  return routing;
}

// Int8 weights with one scale a row and inputs with one scale a token, on a CUDA device. Sums of
// integers are exact, so the CPU's results are the same bits.
class TokenCodesTest : public OpTest {
 protected:
  void SetUp() override {
    OpTest::SetUp();
    if (!on_cuda() || IsSkipped()) return;
    Workspace::Scope scope(workspace);
    PaddedTensor x({1, 32}, 0);
    x.fill_normal(random);
    if (!stream.cuda().overlaps_kernels()) GTEST_SKIP() << "for devices from Hopper on";
    ASSERT_EQ(prepare(x).token_codes.rank(), 2);
  }

  LinearInput prepare(const TensorView& x) {
    return prepare_linear_input(stream, workspace, x, kPerToken);
  }
  // Some rows of zeros, of large numbers, and with an element that is not a number.
  void fill(PaddedTensor& x) {
    x.fill_normal(random, random.pick({1e-3f, 1.0f, 100.0f}));
    const int64_t tokens = x.view().dim(0);
    if (tokens < 4) return;
    std::fill_n(x.row(random.integer(0, tokens - 1)), x.row_elements(), 0.0f);
    x.row(random.integer(0, tokens - 1))[random.integer(0, x.row_elements() - 1)] = 3e4f;
    x.row(random.integer(0, tokens - 1))[random.integer(0, x.row_elements() - 1)] = kNan;
  }
  void expect_same_rows(const PaddedTensor& actual, const PaddedTensor& expected) {
    EXPECT_TRUE(actual.gaps_untouched());
    for (int64_t t = 0; t < expected.view().dim(0); ++t) {
      for (int64_t r = 0; r < expected.row_elements(); ++r) {
        const float a = actual.row(t)[r], b = expected.row(t)[r];
        if (std::isnan(a) && std::isnan(b)) continue;
        ASSERT_EQ(std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b))
            << "token " << t << ", row " << r << ": " << a << " for " << b;
      }
    }
  }

  // weight: [experts, rows, cols]; tiles: the same on the device.
  void check_experts(const Weight& weight, const Weight& tiles, int64_t pairs) {
    const int64_t experts = weight.shape.dim(0), rows = weight.shape.dim(1), cols = weight.cols();
    SCOPED_TRACE(fmt::format("{} × [{}, {}], {} pairs", experts, rows, cols, pairs));
    const Routing routing = random_routing(random, experts, pairs, pairs);
    PaddedTensor x({pairs, cols}, 4), y({pairs, rows}, 3), expected({pairs, rows}, 0);
    fill(x);
    Workspace::Scope scope(workspace), cpu_scope(cpu_workspace);
    grouped_linear(stream, tiles, prepare(x), routing.offsets, y);
    grouped_linear(cpu, weight, prepare_linear_input(cpu, cpu_workspace, x, kPerToken),
                   routing.offsets, expected);
    expect_same_rows(y, expected);
  }

  Stream cpu{pool};
  Workspace cpu_workspace{size_t{1} << 30};
};

TEST_P(TokenCodesTest, ProductsAreTheBitsOfTheCpu) {
  for (const int64_t cols : {32, 96, 128, 160, 256, 544, 2048}) {
    for (const int64_t rows : {1, 37, 64, 128, 200, 300}) {
      if (small_tests() && ((cols != 96 && cols != 544) || rows % 100 != 0)) continue;
      const Weight weight = random_weight(random, FormatId::kW8C, {rows, cols});
      const Weight tiles = cuda::pack_tiles(on_target(weight));
      for (const int64_t tokens :
           {int64_t{1}, int64_t{7}, int64_t{8}, int64_t{9}, int64_t{16}, int64_t{17}, int64_t{31},
            int64_t{32}, int64_t{33}, int64_t{64}, random.integer(65, 128),
            random.integer(129, 256), random.integer(257, 600)}) {
        if (small_tests() && tokens < 65 && tokens != 1 && tokens != 9 && tokens != 33) continue;
        SCOPED_TRACE(fmt::format("[{}, {}], {} tokens", rows, cols, tokens));
        PaddedTensor x({tokens, cols}, random.integer(0, 4)), y({tokens, rows}, 3);
        PaddedTensor expected({tokens, rows}, 0);
        fill(x);
        Workspace::Scope scope(workspace), cpu_scope(cpu_workspace);
        linear(stream, tiles, prepare(x), y);
        linear(cpu, weight, prepare_linear_input(cpu, cpu_workspace, x, kPerToken), expected);
        expect_same_rows(y, expected);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(TokenCodesTest, ProductsOfExpertsAreTheBitsOfTheCpu) {
  for (const auto& [experts, rows, cols] :
       {std::array<int64_t, 3>{5, 96, 256}, {16, 130, 160}, {3, 256, 512}}) {
    const Weight weight = random_weight(random, FormatId::kW8C, {experts, rows, cols});
    const Weight tiles = cuda::pack_tiles(on_target(weight));
    for (const int64_t pairs :
         {int64_t{1}, int64_t{20}, 50 * experts, 110 * experts, 300 * experts}) {
      if (small_tests() && pairs == 300 * experts && experts > 5) continue;
      check_experts(weight, tiles, pairs);
      if (HasFatalFailure()) return;
    }
  }
}

// More items than blocks, with rows and columns that do not fill the last ones.
TEST_P(TokenCodesTest, ProductsOfManyExpertsAreTheBitsOfTheCpu) {
  for (const auto& [experts, rows, cols] :
       {std::array<int64_t, 3>{280, 224, 160}, {140, 512, 544}, {300, 256, 96}, {290, 240, 32}}) {
    const Weight weight = random_weight(random, FormatId::kW8C, {experts, rows, cols});
    const Weight tiles = cuda::pack_tiles(on_target(weight));
    for (const int64_t pairs : {2 * experts, random.integer(20, 40) * experts, 64 * experts}) {
      if (small_tests() && pairs == 64 * experts) continue;
      check_experts(weight, tiles, pairs);
      if (HasFatalFailure()) return;
    }
  }
}

// Against the single ops, whose results are the same bits.
TEST_P(TokenCodesTest, GatedBlocksAreTheirOpsInTurn) {
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    for (const bool joined : {false, true}) {
      if (small_tests() && joined != (activation == Activation::kSilu)) continue;
      for (const int64_t tokens : {1, 40, 150, 500, small_tests() ? 600 : 1500}) {
        // Many experts have more items than there are blocks.
        const bool many = tokens > 500;
        if (many && joined != (activation == Activation::kSilu)) continue;  // takes long to make up
        const int64_t experts = many ? random.integer(140, 160) : random.integer(2, 9);
        const int64_t width = 32 * (many ? random.integer(7, 8) : random.integer(1, 9));
        const int64_t hidden = 32 * (many ? random.integer(14, 16) : random.integer(1, 12));
        const int64_t pairs = 3 * tokens;
        SCOPED_TRACE(fmt::format("{} tokens, {} experts, {} × {}, {}", tokens, experts, width,
                                 hidden, joined ? "joined" : "apart"));
        Workspace::Scope scope(workspace);
        const auto tiles = [&](const Shape& shape) {
          return cuda::pack_tiles(on_target(random_weight(random, FormatId::kW8C, shape)));
        };
        const Weight gate = tiles({experts, joined ? 2 * width : width, hidden});
        const Weight up = joined ? Weight{} : tiles({experts, width, hidden});
        const Weight down = tiles({experts, hidden, width});
        const Weight dense_gate = tiles({2 * width, hidden}), dense_down = tiles({hidden, width});
        const Weight none;
        const Routing routing = random_routing(random, experts, pairs, tokens);
        const auto on_device = [&](const std::vector<int32_t>& list) {
          const auto count = static_cast<int64_t>(list.size());
          Tensor tensor(DType::kI32, {count}, device);
          std::copy(list.begin(), list.end(), tensor.data<int32_t>());
          return tensor;
        };
        const Tensor offsets = on_device(routing.offsets), rows = on_device(routing.tokens);
        const ExpertGroups groups{.offsets = offsets.view(), .tokens = rows.view(), .places = {}};

        PaddedTensor x({tokens, hidden}, 4), out({pairs, hidden}, 1),
            dense_out({tokens, hidden}, 2);
        x.fill_normal(random);
        const LinearInput input = prepare(x);
        const GatedMlpCall calls[] = {
            {activation, &dense_gate, &none, &dense_down, &input, nullptr, dense_out},
            {activation, &gate, &up, &down, &input, &groups, out}};
        ASSERT_TRUE(gated_mlps(stream, workspace, calls));

        PaddedTensor expected({pairs, hidden}, 0), dense_expected({tokens, hidden}, 0);
        const LinearInput sorted = gather_input(stream, workspace, input, rows);
        PaddedTensor both({pairs, 2 * width}, 0);
        if (joined) {
          grouped_linear(stream, gate, sorted, offsets.view(), both);
        } else {
          grouped_linear(stream, gate, sorted, offsets.view(), both.view().columns(0, width));
          grouped_linear(stream, up, sorted, offsets.view(), both.view().columns(width, width));
        }
        grouped_linear(
            stream, down,
            prepare_gated_input(stream, workspace, activation, both.view().columns(0, width),
                                both.view().columns(width, width), kPerToken),
            offsets.view(), expected);
        expect_same_rows(out, expected);
        if (pairs > 8 * experts) {
          const Tensor rounded(DType::kBF16, {pairs, hidden}, device);
          auto* const actual = static_cast<BFloat16*>(rounded.view().raw());
          std::fill_n(actual, pairs * hidden, to_bfloat16(kNan));
          GatedMlpCall call = calls[1];
          call.out = rounded.view();
          ASSERT_TRUE(gated_mlps(stream, workspace, std::span(&call, 1)));
          for (int64_t i = 0; i < pairs * hidden; ++i) {
            ASSERT_EQ(actual[i].bits, to_bfloat16(expected.row(0)[i]).bits)
                << "rounded element " << i;
          }
          stream.cuda().set_deterministic(true);
          EXPECT_FALSE(gated_mlps(stream, workspace, std::span(&call, 1)));
          stream.cuda().set_deterministic(false);
        }
        PaddedTensor dense_both({tokens, 2 * width}, 0);
        linear(stream, dense_gate, input, dense_both);
        linear(
            stream, dense_down,
            prepare_gated_input(stream, workspace, activation, dense_both.view().columns(0, width),
                                dense_both.view().columns(width, width), kPerToken),
            dense_expected);
        expect_same_rows(dense_out, dense_expected);
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, TokenCodesTest, testing::Values(OpTarget{.cuda = true}),
                         target_name);

}  // namespace
}  // namespace braid

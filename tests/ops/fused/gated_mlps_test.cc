#include "ops/fused/gated_mlps.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "ops/linear/cuda/product_choice.h"
#include "ops/linear/random_weight.h"
#include "ops/op_test.h"
#include "quant/cuda/pack_tiles.h"
#include "quant/device_tiles.h"
#include "reference/elementwise.h"
#include "reference/linear.h"
#include "tensor/cuda/stream_state.h"

namespace braid {
namespace {

struct Sizes {
  int64_t tokens, hidden;
  int64_t dense_width = 0;   // 0: only experts
  int64_t expert_width = 0;  // 0: only the dense block
  int64_t experts = 0, top_k = 0;
  bool joined = true;                 // gate and up of the experts in one tensor
  FormatId format = FormatId::kBF16;  // on the device in tiles, where it has them
  bool rounds = false;                // results of experts
  bool in_place = false;              // experts are chosen by the kernel itself
  // By force, of experts.
  std::optional<cuda::ProductPath> path = std::nullopt;
};

// One gated block in double, with a bound of the error of each output: sums of floats in any order,
// tensor cores that may cut off (twice the error of rounding), the activation in float32 (a few
// roundings), its result rounded to bfloat16 once.
struct Expected {
  std::vector<double> value, bound;
};

class GatedMlpsTest : public OpTest {
 protected:
  static constexpr double kActivationRoundings = 8;
  static constexpr double kBF16Roundoff = 0x1p-8;
  // |f'| of both activations stays below this.
  static constexpr double kSlope = 1.13;

  Weight weight(const Shape& shape, FormatId format = FormatId::kBF16) {
    return random_weight(random, format, shape);
  }

  static double activate(Activation activation, double x) {
    return activation == Activation::kSilu ? x / (1 + std::exp(-x)) : reference::gelu_tanh(x);
  }

  // gate, up: [width, hidden]; down: [hidden, width].
  static Expected reference_of(Activation activation, const float* gate, const float* up,
                               const float* down, const double* x, int64_t hidden, int64_t width) {
    const double sum_error = 2 * kUnitRoundoff * static_cast<double>(hidden + 3) * 1.01;
    std::vector<double> h(static_cast<size_t>(width)), error(h.size());
    for (int64_t i = 0; i < width; ++i) {
      const auto g = reference::dot(gate + i * hidden, x, hidden);
      const auto u = reference::dot(up + i * hidden, x, hidden);
      const double f = activate(activation, g.value);
      h[i] = f * u.value;
      const double before = kSlope * sum_error * g.magnitude * std::fabs(u.value) +
                            std::fabs(f) * sum_error * u.magnitude +
                            kSlope * sum_error * sum_error * g.magnitude * u.magnitude +
                            kActivationRoundings * kUnitRoundoff * std::fabs(h[i]) *
                                (1 + std::fabs(g.value) * std::fabs(g.value));
      error[i] = before + (std::fabs(h[i]) + before) * 0x1p-8 + 0x1p-126;
    }
    Expected expected;
    for (int64_t r = 0; r < hidden; ++r) {
      double value = 0, bound = 0;
      for (int64_t i = 0; i < width; ++i) {
        const double w = down[r * width + i];
        value += w * h[i];
        bound += std::fabs(w) * error[i] +
                 2 * kUnitRoundoff * static_cast<double>(width + 3) * 1.01 * std::fabs(w * h[i]);
      }
      expected.value.push_back(value);
      expected.bound.push_back(bound + 0x1p-126);
    }
    return expected;
  }

  // roundoff: of a last rounding of the results.
  void expect_row(const float* actual, const Expected& expected, double roundoff,
                  const std::string& where) {
    for (size_t r = 0; r < expected.value.size(); ++r) {
      const double bound =
          expected.bound[r] + roundoff * (std::fabs(expected.value[r]) + expected.bound[r]);
      ASSERT_LE(std::fabs(actual[r] - expected.value[r]), bound)
          << where << ", output " << r << ": " << actual[r] << " for " << expected.value[r];
    }
  }

  // Random choices of experts, often the same ones.
  TensorView choose(const Sizes& s, Tensor& storage) {
    storage = Tensor(DType::kI32, {s.tokens, s.top_k}, device);
    std::vector<int32_t> order(static_cast<size_t>(s.experts));
    std::iota(order.begin(), order.end(), 0);
    const bool crowded = random.integer(0, 1) == 1;
    for (int64_t t = 0; t < s.tokens; ++t) {
      if (t == 0 || !crowded) std::shuffle(order.begin(), order.end(), random.engine());
      std::copy_n(order.begin(), s.top_k, storage.view().row<int32_t>(t));
    }
    return storage.view();
  }

  // Often the same experts for all tokens; sometimes with ties or NaN.
  void fill_logits(PaddedTensor& logits) {
    logits.fill_normal(random, 3);
    const int64_t kind = random.integer(0, 3);
    for (int64_t t = 0; t < logits.view().dim(0); ++t) {
      for (int64_t e = 0; e < logits.view().dim(1); ++e) {
        float& logit = logits.row(t)[e];
        if (kind == 0) logit = std::round(logit);
        if (kind == 1 && random.integer(0, 3) > 0) logit = std::nanf("");
        if (kind == 2 && t > 0 && random.integer(0, 7) > 0) logit = logits.row(0)[e];
      }
    }
  }

  void check(const Sizes& s) {
    SCOPED_TRACE(fmt::format("{}, {} tokens, hidden {}, dense {}, {} experts of {}, {}",
                             quant_format(s.format).name, s.tokens, s.hidden, s.dense_width,
                             s.experts, s.expert_width, s.joined ? "joined" : "apart"));
    Workspace::Scope scope(workspace);
    const auto activation = random.pick({Activation::kSilu, Activation::kGeluTanh});
    PaddedTensor dense_x({s.tokens, s.hidden}, 0), expert_x({s.tokens, s.hidden}, 0);
    dense_x.fill_normal(random, 0.5f);
    expert_x.fill_normal(random, 0.5f);
    const LinearInput dense_input =
        prepare_linear_input(stream, workspace, dense_x, ActivationPrecision::kBF16);
    const LinearInput expert_input =
        prepare_linear_input(stream, workspace, expert_x, ActivationPrecision::kBF16);
    PaddedTensor dense_out({s.tokens, s.hidden}, random.integer(0, 1) * 4);
    PaddedTensor expert_out({std::max<int64_t>(s.tokens * s.top_k, 1), s.hidden}, 0);

    std::vector<Weight> host, there;
    host.reserve(6), there.reserve(6);
    const auto make = [&](const Shape& shape) {
      host.push_back(weight(shape, s.format));
      there.push_back(on_target(host.back()));
      if (on_cuda()) there.back() = cuda::pack_tiles(there.back());
      return &there.back();
    };
    const Weight none;
    std::vector<GatedMlpCall> calls;
    if (s.dense_width > 0) {
      const Weight* gate = make({s.dense_width, s.hidden});
      const Weight* up = make({s.dense_width, s.hidden});
      const Weight* down = make({s.hidden, s.dense_width});
      calls.push_back({activation, gate, up, down, &dense_input, nullptr, dense_out.view()});
    }
    Tensor storage;
    PaddedTensor logits({s.tokens, std::max<int64_t>(s.experts, 1)}, random.integer(0, 2));
    ExpertGroups groups, in_place;
    if (s.in_place) {
      storage = Tensor(DType::kI32, {s.tokens, s.top_k}, device);
      const Tensor weights(DType::kF32, {s.tokens, s.top_k}, device);
      fill_logits(logits);
      groups = route_to_experts(stream, workspace, logits, {}, storage, weights);
      ASSERT_TRUE(route_in_place(stream, workspace, {logits.view(), {}}, storage, in_place));
    } else if (s.experts > 0) {
      groups = group_by_expert(stream, workspace, choose(s, storage), s.experts);
    }
    if (s.experts > 0) {
      const Weight* gate = make({s.experts, (s.joined ? 2 : 1) * s.expert_width, s.hidden});
      const Weight* up = s.joined ? &none : make({s.experts, s.expert_width, s.hidden});
      const Weight* down = make({s.experts, s.hidden, s.expert_width});
      calls.push_back({activation, gate, up, down, &expert_input, s.in_place ? &in_place : &groups,
                       expert_out.view()});
    }
    cuda::ProductTable table("any", 1, 0);
    std::optional<cuda::ProductTableScope> by_force;
    if (s.path) {
      table.add({.kind = cuda::ProductKind::kGatedExperts,
                 .format = s.format,
                 .tiles = in_tiles(*there.back().format),
                 .experts = s.experts,
                 .rows = s.expert_width,
                 .cols = s.hidden,
                 .tokens = s.tokens * s.top_k},
                {*s.path});
      by_force.emplace(table);
    }
    const Tensor rounded(DType::kBF16, expert_out.view().shape(), device);
    std::fill_n(static_cast<uint16_t*>(rounded.view().raw()), rounded.view().num_elements(),
                uint16_t{0x7fc0});  // not a number
    if (s.rounds) {
      ASSERT_FALSE(gated_mlps(stream, workspace, calls));
      calls.back().out = rounded.view();
    }
    // Twice: the kernel must leave its counters as it found them.
    for (int round = 0; round < 2; ++round) {
      const bool done = gated_mlps(stream, workspace, calls);
      ASSERT_EQ(done, on_cuda() && stream.cuda().overlaps_kernels());
      if (!done) return;
    }
    if (s.rounds) {
      const auto* from = static_cast<const BFloat16*>(rounded.view().raw());
      for (int64_t i = 0; i < rounded.view().num_elements(); ++i) {
        expert_out.row(0)[i] = to_float(from[i]);
      }
    }
    size_t next = 0;
    if (s.dense_width > 0) {
      const std::vector<float> gate = reference::expand(host[0]), up = reference::expand(host[1]),
                               down = reference::expand(host[2]);
      next = 3;
      const auto x = reference::rounded_inputs(dense_input, false, *host[0].format);
      for (int64_t t = 0; t < s.tokens; ++t) {
        expect_row(dense_out.row(t),
                   reference_of(activation, gate.data(), up.data(), down.data(), &x[t * s.hidden],
                                s.hidden, s.dense_width),
                   0, fmt::format("dense, token {}", t));
      }
      EXPECT_TRUE(dense_out.gaps_untouched());
    }
    if (s.experts == 0) return;
    const std::vector<float> gate = reference::expand(host[next]);
    const std::vector<float> up =
        s.joined ? std::vector<float>() : reference::expand(host[next + 1]);
    const std::vector<float> down = reference::expand(host.back());
    const auto x = reference::rounded_inputs(expert_input, false, *host[next].format);
    const int64_t matrix = s.expert_width * s.hidden;
    const auto* offsets = groups.offsets.data<int32_t>();
    const auto* tokens = groups.tokens.data<int32_t>();
    for (int64_t e = 0; e < s.experts; ++e) {
      const float* own_gate = gate.data() + e * matrix * (s.joined ? 2 : 1);
      const float* own_up = s.joined ? own_gate + matrix : up.data() + e * matrix;
      for (int32_t pair = offsets[e]; pair < offsets[e + 1]; ++pair) {
        expect_row(expert_out.row(pair),
                   reference_of(activation, own_gate, own_up, down.data() + e * matrix,
                                &x[tokens[pair] * s.hidden], s.hidden, s.expert_width),
                   s.rounds ? kBF16Roundoff : 0, fmt::format("expert {}, pair {}", e, pair));
        if (HasFatalFailure()) return;
      }
    }
  }
};

TEST_P(GatedMlpsTest, DenseBlocksMatchReference) {
  for (const int64_t tokens : {1, 7, 8, 9, 16, 17, 31, 32}) {
    if (small_tests() && tokens != 1 && tokens != 9 && tokens != 32) continue;
    check({.tokens = tokens,
           .hidden = random.pick<int64_t>({64, 128, 192, 448, 1024}),
           .dense_width = random.pick<int64_t>({64, 128, 320, 640})});
    if (HasFatalFailure()) return;
  }
}

TEST_P(GatedMlpsTest, ExpertsMatchReference) {
  for (const int64_t tokens : {1, 2, 8, 9, 13, 24, 32}) {
    if (small_tests() && tokens != 1 && tokens != 9 && tokens != 32) continue;
    check({.tokens = tokens,
           .hidden = random.pick<int64_t>({64, 128, 320}),
           .expert_width = random.pick<int64_t>({64, 128, 192}),
           .experts = small_tests() ? 20 : random.pick<int64_t>({20, 33, 130}),
           .top_k = random.integer(1, 5),
           .joined = random.integer(0, 1) == 1});
    if (HasFatalFailure()) return;
  }
}

TEST_P(GatedMlpsTest, DenseBesideExpertsMatchReference) {
  for (const int64_t tokens : {1, 3, 8, 10, 32}) {
    if (small_tests() && tokens != 3 && tokens != 10) continue;
    check({.tokens = tokens,
           .hidden = random.pick<int64_t>({64, 256, 704}),
           .dense_width = random.pick<int64_t>({64, 576}),
           .expert_width = random.pick<int64_t>({64, 192}),
           .experts = small_tests() ? 24 : random.pick<int64_t>({24, 64, 200}),
           .top_k = random.integer(1, 6),
           .joined = random.integer(0, 1) == 1});
    if (HasFatalFailure()) return;
  }
}

TEST_P(GatedMlpsTest, ExpertsOfManyTokensMatchReference) {
  for (const int64_t tokens : {40, 129, 192, 333}) {
    if (small_tests() && tokens != 40 && tokens != 129) continue;
    check({.tokens = tokens,
           .hidden = random.pick<int64_t>({64, 192, 320, 576, 832}),
           .expert_width = random.pick<int64_t>({64, 128, 192, 320, 448}),
           .experts = random.pick<int64_t>({3, 5, 8}),
           .top_k = random.integer(2, 3),
           .joined = random.integer(0, 1) == 1,
           .rounds = true});
    if (HasFatalFailure()) return;
  }
}

// More tiles than blocks, of many sizes; hidden sizes whose last tile of rows is not full.
TEST_P(GatedMlpsTest, ManyExpertsOfManyTokensMatchReference) {
  for (const int64_t experts : {random.integer(66, 140), random.integer(141, 300)}) {
    if (small_tests() && experts > 140) continue;
    const bool wider = experts <= 140 && !small_tests();
    check({.tokens = random.integer(5 * experts, 6 * experts),
           .hidden = wider ? random.pick<int64_t>({320, 576}) : random.pick<int64_t>({64, 192}),
           .expert_width = wider ? random.pick<int64_t>({192, 320}) : 64,
           .experts = experts,
           .top_k = 2,
           .joined = random.integer(0, 1) == 1,
           .rounds = true});
    if (HasFatalFailure()) return;
  }
}

TEST_P(GatedMlpsTest, TilesMatchReference) {
  if (!on_cuda()) GTEST_SKIP() << "for devices";
  for (const FormatId format : {FormatId::kW4G128, FormatId::kW4G64Asym, FormatId::kW4G32F32,
                                FormatId::kQ4_0, FormatId::kQ8_0, FormatId::kW8C}) {
    for (const int64_t tokens : {1, 5, 8, 9, 16, 17, 32}) {
      if (small_tests() && tokens != 1 && tokens != 9 && tokens != 32) continue;
      const bool dense = random.integer(0, 2) > 0;
      const bool routed = !dense || random.integer(0, 2) > 0;
      const int64_t some = small_tests() ? 20 : random.pick<int64_t>({20, 33, 64});
      check(
          {.tokens = tokens,
           .hidden = random.pick<int64_t>({128, 256, 640, small_tests() ? 640 : 1024}),
           .dense_width = dense ? random.pick<int64_t>({128, 384, small_tests() ? 384 : 1152}) : 0,
           .expert_width = routed ? random.pick<int64_t>({128, 256}) : 0,
           .experts = routed ? some : 0,
           .top_k = routed ? random.integer(1, small_tests() ? 2 : 5) : 0,
           .joined = random.integer(0, 1) == 1,
           .format = format});
      if (HasFatalFailure()) return;
    }
  }
}

// Several units of each kind for a block, or none; tokens of one expert that make several tiles.
TEST_P(GatedMlpsTest, FewTokensOfManyExpertsMatchReference) {
  if (!on_cuda()) GTEST_SKIP() << "for devices";
  for (const FormatId format : {FormatId::kBF16, FormatId::kW8C}) {
    for (const int64_t tokens : {1, 8, 32}) {
      if (small_tests() && tokens == 32) continue;
      check({.tokens = tokens,
             .hidden = random.pick<int64_t>({256, 384}),
             .dense_width = random.pick<int64_t>({64, 128}),
             .expert_width = random.pick<int64_t>({64, 128}),
             .experts = random.pick<int64_t>({131, 260}),
             .top_k = 10,
             .joined = random.integer(0, 1) == 1,
             .format = format});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(GatedMlpsTest, ExpertsChosenInPlaceMatchReference) {
  if (!on_cuda() || !stream.cuda().overlaps_kernels()) GTEST_SKIP() << "for devices from Hopper on";
  struct Case {
    int64_t experts, top_k;
  };
  for (const FormatId format : {FormatId::kBF16, FormatId::kW4G128, FormatId::kW8C}) {
    for (const Case& c : {Case{12, 1}, Case{31, 5}, Case{128, 8}, Case{130, 16}, Case{512, 10}}) {
      if (small_tests() && c.experts != 31 && c.experts != 128) continue;
      for (const int64_t tokens : {int64_t{1}, random.integer(2, 7), int64_t{8}}) {
        if (tokens > 1 && c.experts == 512) continue;
        check({.tokens = tokens,
               .hidden = 128 * random.integer(1, 2),
               .dense_width = 128 * random.integer(0, 1),
               .expert_width = 128 * random.integer(1, 2),
               .experts = c.experts,
               .top_k = c.top_k,
               .joined = random.integer(0, 1) == 1,
               .format = format,
               .in_place = true});
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Beyond the tokens for which constants choose a pass over the weights, and below those of tiles.
TEST_P(GatedMlpsTest, PathsByForceMatchReference) {
  for (const FormatId format : {FormatId::kBF16, FormatId::kW4G128, FormatId::kW8C}) {
    const Sizes stream_of_more{.tokens = random.integer(41, 79),
                               .hidden = random.pick<int64_t>({128, 256, 640}),
                               .expert_width = random.pick<int64_t>({128, 256}),
                               .experts = 10,
                               .top_k = 2,
                               .joined = random.integer(0, 1) == 1,
                               .format = format,
                               .path = cuda::ProductPath::kStream};
    if (format == FormatId::kBF16 || on_cuda()) check(stream_of_more);
    if (HasFatalFailure()) return;
  }
  for (const int64_t tokens : {1, 8, 33}) {
    check({.tokens = tokens,
           .hidden = random.pick<int64_t>({64, 192, 320}),
           .dense_width = 0,
           .expert_width = random.pick<int64_t>({64, 192}),
           .experts = random.pick<int64_t>({12, 20, small_tests() ? 20 : 130}),
           .top_k = random.integer(1, 3),
           .joined = random.integer(0, 1) == 1,
           .rounds = true,
           .path = cuda::ProductPath::kWide});
    if (HasFatalFailure()) return;
  }
}

// Whatever the tokens that a token shares its step with, as long as they meet weights in tiles of
// one size.
TEST_P(GatedMlpsTest, BatchMatesChangeNothing) {
  if (!on_cuda() || !stream.cuda().overlaps_kernels()) GTEST_SKIP() << "for Hopper";
  constexpr int64_t kHidden = 256, kWidth = 320;
  const Weight gate = on_target(weight({kWidth, kHidden})),
               up = on_target(weight({kWidth, kHidden}));
  const Weight down = on_target(weight({kHidden, kWidth}));
  PaddedTensor x({8, kHidden}, 0);
  x.fill_normal(random, 0.5f);
  std::vector<std::vector<uint32_t>> results;
  for (const int64_t tokens : {1, 5, 8}) {
    Workspace::Scope scope(workspace);
    const LinearInput input = prepare_linear_input(stream, workspace, x.view().rows(0, tokens),
                                                   ActivationPrecision::kBF16);
    PaddedTensor out({tokens, kHidden}, 0);
    const GatedMlpCall calls[] = {
        {Activation::kSilu, &gate, &up, &down, &input, nullptr, out.view()}};
    ASSERT_TRUE(gated_mlps(stream, workspace, calls));
    results.push_back(out.bits());
    results.back().resize(kHidden);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// On a deterministic stream they are one pass for any number of tokens, whose results are those
// that each token has alone: of a dense block, of experts, of both.
TEST_P(GatedMlpsTest, AnyNumberOfMatesChangesNothingOnADeterministicStream) {
  if (!on_cuda() || !stream.cuda().overlaps_kernels()) GTEST_SKIP() << "for Hopper";
  stream.cuda().set_deterministic(true);
  for (const FormatId format :
       {FormatId::kBF16, FormatId::kW4G128, FormatId::kW4G64, FormatId::kW8C, FormatId::kQ8_0}) {
    const int64_t hidden = random.pick<int64_t>({128, 256, 640});
    const int64_t dense_width = random.pick<int64_t>({128, 384, 1152});
    const int64_t expert_width = random.pick<int64_t>({128, 256});
    const int64_t experts = random.integer(5, 40), top_k = random.integer(1, 4);
    const int64_t most = small_tests() ? 40 : 150;
    SCOPED_TRACE(fmt::format("{}, hidden {}, dense {}, {} experts of {}, {} each",
                             quant_format(format).name, hidden, dense_width, experts, expert_width,
                             top_k));
    std::vector<Weight> there;
    there.reserve(6);
    const auto make = [&](const Shape& shape) {
      there.push_back(cuda::pack_tiles(on_target(weight(shape, format))));
      return &there.back();
    };
    const Weight none;
    const Weight* gate = make({dense_width, hidden});
    const Weight* up = make({dense_width, hidden});
    const Weight* down = make({hidden, dense_width});
    const Weight* experts_gate_up = make({experts, 2 * expert_width, hidden});
    const Weight* experts_down = make({experts, hidden, expert_width});
    const auto activation = random.pick({Activation::kSilu, Activation::kGeluTanh});
    PaddedTensor x({most, hidden}, 0);
    x.fill_normal(random, 0.5f);
    std::vector<int32_t> chosen;
    std::vector<int32_t> order(static_cast<size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    for (int64_t t = 0; t < most; ++t) {
      std::shuffle(order.begin(), order.end(), random.engine());
      chosen.insert(chosen.end(), order.begin(), order.begin() + top_k);
    }
    // What tokens [first, first + count) get, of the dense block and of each of their experts.
    const auto run = [&](int64_t first, int64_t count, bool dense, bool routed) {
      Workspace::Scope scope(workspace);
      const LinearInput input = prepare_linear_input(stream, workspace, x.view().rows(first, count),
                                                     ActivationPrecision::kBF16);
      PaddedTensor dense_out({count, hidden}, 0), expert_out({count * top_k, hidden}, 0);
      const Tensor choices(DType::kI32, {count, top_k}, device);
      std::copy_n(chosen.begin() + first * top_k, count * top_k, choices.view().data<int32_t>());
      const ExpertGroups groups = group_by_expert(stream, workspace, choices.view(), experts);
      std::vector<GatedMlpCall> calls;
      if (dense) calls.push_back({activation, gate, up, down, &input, nullptr, dense_out.view()});
      if (routed) {
        calls.push_back(
            {activation, experts_gate_up, &none, experts_down, &input, &groups, expert_out.view()});
      }
      EXPECT_TRUE(gated_mlps(stream, workspace, calls)) << count << " tokens";
      std::vector<std::vector<uint32_t>> results(static_cast<size_t>(count));
      const auto add = [&](int64_t token, const float* row) {
        for (int64_t i = 0; i < hidden; ++i) {
          results[static_cast<size_t>(token)].push_back(std::bit_cast<uint32_t>(row[i]));
        }
      };
      for (int64_t t = 0; dense && t < count; ++t) add(t, dense_out.row(t));
      if (!routed) return results;
      const auto* tokens = groups.tokens.data<int32_t>();
      for (int64_t pair = 0; pair < count * top_k; ++pair) {
        add(tokens[pair], expert_out.row(pair));
      }
      return results;
    };
    for (const auto& [dense, routed] : {std::pair{true, false}, {false, true}, {true, true}}) {
      const auto all = run(0, most, dense, routed);
      for (const int64_t count : {1, 2, 8, 9, 17, 33}) {
        const int64_t first = random.integer(0, most - count);
        const auto some = run(first, count, dense, routed);
        for (int64_t t = 0; t < count; ++t) {
          ASSERT_EQ(some[static_cast<size_t>(t)], all[static_cast<size_t>(first + t)])
              << count << " tokens, dense " << dense << ", routed " << routed;
        }
      }
    }
  }
}

// More tiles of tokens than a stream has counters.
TEST_P(GatedMlpsTest, VeryManyTokensOfADeterministicStream) {
  if (!on_cuda() || !stream.cuda().overlaps_kernels()) GTEST_SKIP() << "for Hopper";
  if (small_tests()) GTEST_SKIP() << "takes long";
  stream.cuda().set_deterministic(true);
  constexpr int64_t kHidden = 64, kWidth = 2112;  // three counters for 32 tokens
  constexpr int64_t kTokens = 32 * (cuda::StreamState::kNumCounters / 3 + 4);
  const Weight gate = on_target(weight({2 * kWidth, kHidden}));
  const Weight down = on_target(weight({kHidden, kWidth}));
  const Weight none;
  PaddedTensor x({kTokens, kHidden}, 0), all({kTokens, kHidden}, 0), some({40, kHidden}, 0);
  x.fill_normal(random, 0.5f);
  const auto run = [&](int64_t first, const TensorView& out) {
    Workspace::Scope scope(workspace);
    const LinearInput input = prepare_linear_input(
        stream, workspace, x.view().rows(first, out.dim(0)), ActivationPrecision::kBF16);
    const GatedMlpCall calls[] = {{Activation::kSilu, &gate, &none, &down, &input, nullptr, out}};
    ASSERT_TRUE(gated_mlps(stream, workspace, calls));
  };
  for (int round = 0; round < 2; ++round) run(0, all);
  for (const int64_t first : {int64_t{0}, random.integer(0, kTokens - 40), kTokens - 40}) {
    run(first, some);
    for (int64_t t = 0; t < 40; ++t) {
      for (int64_t i = 0; i < kHidden; ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(some.row(t)[i]),
                  std::bit_cast<uint32_t>(all.row(first + t)[i]))
            << "token " << first + t;
      }
    }
  }
}

// More tokens than are otherwise one pass.
TEST_P(GatedMlpsTest, ManyTokensOfADeterministicStreamMatchReference) {
  if (!on_cuda() || !stream.cuda().overlaps_kernels()) GTEST_SKIP() << "for Hopper";
  stream.cuda().set_deterministic(true);
  for (const FormatId format : {FormatId::kBF16, FormatId::kW4G128}) {
    for (const int64_t tokens : {33, 100, 333}) {
      if (small_tests() && tokens > 33) continue;
      check({.tokens = tokens,
             .hidden = random.pick<int64_t>({128, 256, 640}),
             .dense_width = random.pick<int64_t>({128, 384, 1152}),
             .expert_width = random.pick<int64_t>({128, 256}),
             .experts = random.integer(5, 40),
             .top_k = random.integer(1, 4),
             .joined = random.integer(0, 1) == 1,
             .format = format});
      if (HasFatalFailure()) return;
    }
  }
}

BRAID_INSTANTIATE_PER_TARGET(GatedMlpsTest);

}  // namespace
}  // namespace braid

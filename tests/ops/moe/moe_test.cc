#include "ops/moe/moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/op_test.h"
#include "reference/moe.h"

namespace braid {
namespace {

class MoeTest : public OpTest {
 protected:
  // Distinct experts for every token.
  Tensor random_experts(int64_t tokens, int64_t k, int64_t num_experts) {
    Tensor experts(DType::kI32, {tokens, k}, op_test_device);
    std::vector<int32_t> ids(num_experts);
    std::iota(ids.begin(), ids.end(), 0);
    for (int64_t t = 0; t < tokens; ++t) {
      std::shuffle(ids.begin(), ids.end(), random.engine());
      std::copy_n(ids.begin(), k, experts.view().row<int32_t>(t));
    }
    return experts;
  }
  // Of some tokens: coarse values, a few values only, one value, or NaN here and there.
  void make_ties(const PaddedTensor& logits) {
    for (int64_t t = 0; t < logits.view().dim(0); ++t) {
      const int64_t kind = random.integer(0, 5);
      for (int64_t e = 0; e < logits.view().dim(1); ++e) {
        float& logit = logits.row(t)[e];
        if (kind == 1) logit = std::round(logit);
        if (kind == 2) logit = static_cast<float>(random.integer(-1, 1));
        if (kind == 3) logit = -0.5f;
        if (kind == 4 && random.integer(0, 3) > 0) logit = kNan;
      }
    }
  }
};

TEST_P(MoeTest, ChoosesAndWeighsLikeTheReference) {
  struct Case {
    int64_t num_experts, k;
  };
  for (const Case& c : {Case{1, 1}, Case{4, 4}, Case{16, 2}, Case{128, 8}, Case{512, 10}}) {
    for (const int64_t tokens : {0, 1, 2, 3, 7, 8, 9, 300}) {
      if (small_tests() && tokens != 1 && tokens != 9) continue;
      PaddedTensor logits({tokens, c.num_experts}, 1);
      logits.fill_normal(random, 3);
      // Coarse values make ties.
      if (random.integer(0, 1) == 1) {
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t e = 0; e < c.num_experts; ++e) {
            logits.row(t)[e] = std::round(logits.row(t)[e]);
          }
        }
      }
      Tensor scale(DType::kF32, {c.num_experts}, op_test_device);
      for (float& s : scale.view().span<float>()) s = random.uniform(0.1f, 2);
      const bool scaled = random.integer(0, 1) == 1;
      Tensor experts(DType::kI32, {tokens, c.k}, op_test_device);
      PaddedTensor weights({tokens, c.k}, 0);
      const bool over_chosen = random.integer(0, 1) == 1;
      top_k_experts(stream, logits, scaled ? scale.view() : TensorView(), experts, weights,
                    over_chosen ? RouterSoftmax::kChosen : RouterSoftmax::kAll);
      for (int64_t t = 0; t < tokens; ++t) {
        const reference::Routing expected = reference::route(
            logits.row(t), c.num_experts, c.k, scaled ? scale.data<float>() : nullptr, over_chosen);
        for (int64_t i = 0; i < c.k; ++i) {
          ASSERT_EQ(experts.view().row<int32_t>(t)[i], expected.experts[i]);
          // The exponential to 1 ulp of an argument rounded once, n additions, division, product.
          const int64_t summands = over_chosen ? c.k : c.num_experts;
          const float* row = logits.row(t);
          const float smallest = over_chosen ? row[expected.experts[c.k - 1]]
                                             : *std::min_element(row, row + c.num_experts);
          const double spread = std::abs(double{row[expected.experts[0]]} - smallest);
          const double bound = expected.weights[i] *
                               (2 * spread + 4 + static_cast<double>(summands) + 3) * kUnitRoundoff;
          ASSERT_NEAR(weights.row(t)[i], expected.weights[i], bound);
        }
      }
    }
  }
}

TEST_P(MoeTest, TiesTakeTheLowerIndexAndNanComesLast) {
  PaddedTensor logits({3, 6}, 0);
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<std::vector<float>> values = {
      {1, 2, 2, 1, 2, 2}, {kNan, -inf, 3, kNan, -5, 3}, {kNan, kNan, kNan, kNan, kNan, 0}};
  for (int64_t t = 0; t < 3; ++t) std::copy(values[t].begin(), values[t].end(), logits.row(t));
  Tensor experts(DType::kI32, {3, 4}, op_test_device);
  PaddedTensor weights({3, 4}, 0);
  top_k_experts(stream, logits, TensorView(), experts, weights);
  const std::vector<std::vector<int32_t>> expected = {{1, 2, 4, 5}, {2, 5, 4, 1}, {5, 0, 1, 2}};
  for (int64_t t = 0; t < 3; ++t) {
    const int32_t* row = experts.view().row<int32_t>(t);
    EXPECT_EQ(std::vector<int32_t>(row, row + 4), expected[t]) << "token " << t;
  }
  EXPECT_EQ(weights.row(0)[0], 0.25f);
  EXPECT_EQ(weights.row(1)[3], 0);
}

TEST_P(MoeTest, LargeLogitsDoNotOverflow) {
  PaddedTensor logits({1, 3}, 0);
  logits.row(0)[0] = 3e38f;
  logits.row(0)[1] = 3e38f;
  logits.row(0)[2] = -3e38f;
  Tensor experts(DType::kI32, {1, 3}, op_test_device);
  PaddedTensor weights({1, 3}, 0);
  top_k_experts(stream, logits, TensorView(), experts, weights);
  EXPECT_EQ(weights.row(0)[0], 0.5f);
  EXPECT_EQ(weights.row(0)[1], 0.5f);
  EXPECT_EQ(weights.row(0)[2], 0);
}

TEST_P(MoeTest, GroupsAreSortedByExpertThenToken) {
  struct Case {
    int64_t tokens, num_experts, k;
  };
  for (const Case& c : {Case{0, 4, 2}, Case{1, 1, 1}, Case{1, 128, 8}, Case{9, 16, 3},
                        Case{257, 128, 8}, Case{40, 3, 3}, Case{643, 7, 7}, Case{2565, 64, 8}}) {
    if (small_tests() && c.tokens > 1000) continue;
    Workspace::Scope scope(workspace);
    const Tensor experts = random_experts(c.tokens, c.k, c.num_experts);
    const ExpertGroups groups = group_by_expert(stream, workspace, experts, c.num_experts);
    const int64_t pairs = c.tokens * c.k;
    const std::span<int32_t> offsets = groups.offsets.span<int32_t>();
    const std::span<int32_t> tokens = groups.tokens.span<int32_t>();
    const std::span<int32_t> places = groups.places.span<int32_t>();
    ASSERT_EQ(offsets.size(), static_cast<size_t>(c.num_experts + 1));
    ASSERT_EQ(tokens.size(), static_cast<size_t>(pairs));
    EXPECT_EQ(offsets.front(), 0);
    EXPECT_EQ(offsets.back(), pairs);
    for (int64_t e = 0; e < c.num_experts; ++e) {
      ASSERT_LE(offsets[e], offsets[e + 1]);
      for (int32_t i = offsets[e] + 1; i < offsets[e + 1]; ++i) {
        ASSERT_LT(tokens[i - 1], tokens[i]);
      }
    }
    std::vector<bool> taken(pairs);
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t i = 0; i < c.k; ++i) {
        const int32_t expert = experts.view().row<int32_t>(t)[i];
        const int32_t place = places[t * c.k + i];
        ASSERT_GE(place, offsets[expert]);
        ASSERT_LT(place, offsets[expert + 1]);
        ASSERT_EQ(tokens[place], t);
        ASSERT_FALSE(taken[place]);
        taken[place] = true;
      }
    }
  }
}

TEST_P(MoeTest, RoutingIsChoosingAndGrouping) {
  struct Case {
    int64_t num_experts, k;
  };
  for (const Case& c : {Case{1, 1}, Case{4, 4}, Case{128, 8}, Case{512, 10}, Case{700, 3}}) {
    for (const int64_t tokens : {0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 128, 129, 400}) {
      if (small_tests() && tokens != 1 && tokens % 32 != 1 && tokens != 9) continue;
      Workspace::Scope scope(workspace);
      PaddedTensor logits({tokens, c.num_experts}, 1);
      logits.fill_normal(random, 3);
      make_ties(logits);
      Tensor scale(DType::kF32, {c.num_experts}, op_test_device);
      for (float& s : scale.view().span<float>()) s = random.uniform(0.1f, 2);
      const RouterSoftmax softmax = random.pick({RouterSoftmax::kChosen, RouterSoftmax::kAll});
      const Tensor experts(DType::kI32, {tokens, c.k}, op_test_device);
      const Tensor again(DType::kI32, {tokens, c.k}, op_test_device);
      PaddedTensor weights({tokens, c.k}, 2), weights_again({tokens, c.k}, 0);
      const ExpertGroups groups =
          route_to_experts(stream, workspace, logits, scale, experts, weights, softmax);
      EXPECT_TRUE(weights.gaps_untouched());
      top_k_experts(stream, logits, scale, again, weights_again, softmax);
      const ExpertGroups expected = group_by_expert(stream, workspace, again, c.num_experts);
      const auto same = [](const TensorView& a, const TensorView& b) {
        const auto x = a.span<int32_t>(), y = b.span<int32_t>();
        return std::equal(x.begin(), x.end(), y.begin(), y.end());
      };
      EXPECT_TRUE(same(experts, again));
      for (int64_t t = 0; t < tokens; ++t) {
        const reference::Routing routing =
            reference::route(logits.row(t), c.num_experts, c.k, nullptr);
        const int32_t* row = experts.view().row<int32_t>(t);
        ASSERT_EQ(std::vector<int32_t>(row, row + c.k), routing.experts) << "token " << t;
      }
      EXPECT_TRUE(same(groups.offsets, expected.offsets));
      EXPECT_TRUE(same(groups.tokens, expected.tokens));
      EXPECT_TRUE(same(groups.places, expected.places));
      EXPECT_EQ(weights.bits(), weights_again.bits());
      ExpertGroups in_place;
      PaddedTensor later({tokens, c.k}, 0);
      if (!route_in_place(stream, workspace, {logits, scale, softmax}, experts, in_place)) continue;
      EXPECT_LE(tokens, 8);
      EXPECT_FALSE(in_place.router.logits.empty());
      finish_routing(stream, in_place, again, later);
      EXPECT_TRUE(in_place.router.logits.empty());
      EXPECT_TRUE(same(in_place.offsets, expected.offsets));
      EXPECT_TRUE(same(in_place.tokens, expected.tokens));
      EXPECT_TRUE(same(in_place.places, expected.places));
      EXPECT_EQ(weights.bits(), later.bits());
    }
  }
}

TEST_P(MoeTest, CombinesByAscendingExpert) {
  for (const int64_t width : {1, 2, 7, 8, 9, 17, 64, 100}) {
    for (const int64_t tokens : {0, 1, 3, 8, 300}) {
      if (small_tests() && (width == 2 || width == 8 || tokens == 1 || tokens == 8)) continue;
      Workspace::Scope scope(workspace);
      constexpr int64_t kChoices = 5;
      const Tensor experts = random_experts(tokens, kChoices, 11);
      const ExpertGroups groups = group_by_expert(stream, workspace, experts, 11);
      PaddedTensor y({tokens * kChoices, width}, 1), out({tokens, width}, 2);
      PaddedTensor weights({tokens, kChoices}, 0);
      y.fill_normal(random);
      weights.fill_normal(random);
      combine_experts(stream, y, groups, experts, weights, out);
      EXPECT_TRUE(out.gaps_untouched());
      for (int64_t t = 0; t < tokens; ++t) {
        std::vector<int64_t> choices(kChoices);
        std::iota(choices.begin(), choices.end(), 0);
        std::sort(choices.begin(), choices.end(), [&](int64_t a, int64_t b) {
          return experts.view().row<int32_t>(t)[a] < experts.view().row<int32_t>(t)[b];
        });
        for (int64_t i = 0; i < width; ++i) {
          float sum = 0;
          for (const int64_t choice : choices) {
            sum += weights.row(t)[choice] *
                   y.row(groups.places.data<int32_t>()[t * kChoices + choice])[i];
          }
          ASSERT_EQ(out.row(t)[i], sum) << "token " << t << ", element " << i;
        }
      }
    }
  }
}

TEST_P(MoeTest, RoundedRowsAreCombinedAsTheNumbersThatTheyAre) {
  if (!on_cuda()) GTEST_SKIP() << "for devices";
  for (const int64_t width : {4, 16, 100, 1028, 2048}) {
    for (const int64_t tokens : {1, 3, 300}) {
      if (small_tests() && tokens == 300 && width > 100) continue;
      Workspace::Scope scope(workspace);
      constexpr int64_t kChoices = 5;
      const Tensor experts = random_experts(tokens, kChoices, 11);
      const ExpertGroups groups = group_by_expert(stream, workspace, experts, 11);
      const Tensor rounded(DType::kBF16, {tokens * kChoices, width}, device);
      PaddedTensor y({tokens * kChoices, width}, 0), weights({tokens, kChoices}, 0);
      PaddedTensor out({tokens, width}, 4), expected({tokens, width}, 0);
      weights.fill_normal(random);
      for (int64_t i = 0; i < y.view().num_elements(); ++i) {
        const BFloat16 value = to_bfloat16(random.normal());
        static_cast<BFloat16*>(rounded.view().raw())[i] = value;
        y.row(0)[i] = to_float(value);
      }
      combine_experts(stream, rounded, groups, experts, weights, out);
      combine_experts(stream, y, groups, experts, weights, expected);
      EXPECT_TRUE(out.gaps_untouched());
      EXPECT_EQ(out.bits(), expected.bits()) << tokens << " × " << width;
    }
  }
}

BRAID_INSTANTIATE_PER_TARGET(MoeTest);

}  // namespace
}  // namespace braid

#include "ops/fused/prepared_input.h"

#include "ops/fused/input_bytes.h"
#include "ops/fused/residual.h"
#include "ops/norm/rms_norm.h"
#include "ops/op_test.h"

namespace braid {
namespace {

constexpr int64_t kAllWidths[] = {1, 7, 64, 65, 130, 704, 2112, 2816, 4100};
constexpr int64_t kSomeWidths[] = {7, 64, 704, 4100};
std::vector<int64_t> all_widths() {
  if (small_tests()) return {std::begin(kSomeWidths), std::end(kSomeWidths)};
  return {std::begin(kAllWidths), std::end(kAllWidths)};
}

class FusedInputTest : public OpTest {
 protected:
  Tensor random_weight(int64_t width) {
    Tensor weight(DType::kF32, {width}, device);
    for (float& w : weight.view().span<float>()) w = random.uniform(-2, 3);
    return weight;
  }
  // The sums of rows of up to 512 elements have another order in the single ops of a CUDA device.
  std::vector<int64_t> widths() const {
    std::vector<int64_t> all = all_widths();
    if (on_cuda()) std::erase_if(all, [](int64_t width) { return width <= 512; });
    return all;
  }
  InputRounding random_rounding(int64_t width) {
    if (on_cuda()) {
      // Others have no kernels for int8.
      if (width % 32 == 0 && random.integer(0, 2) == 0) {
        return {ActivationPrecision::kInt8,
                {.per_block = random.integer(0, 1) == 1, .per_token = true}};
      }
      return {random.pick({ActivationPrecision::kF32, ActivationPrecision::kBF16}), {}};
    }
    return {random.pick({ActivationPrecision::kF32, ActivationPrecision::kBF16,
                         ActivationPrecision::kInt8}),
            random.pick({Int8Scales{}, Int8Scales{.per_block = true, .per_token = true},
                         Int8Scales{.per_block = false, .per_token = true}})};
  }
};

TEST_P(FusedInputTest, NormedInputIsTheInputOfTheNorm) {
  for (const int64_t tokens : {0, 1, 3, 9}) {
    for (const int64_t width : widths()) {
      Workspace::Scope scope(workspace);
      PaddedTensor x({tokens, width}, random.integer(0, 4)), y({tokens, width}, 0);
      x.fill_normal(random);
      const Tensor weight = random_weight(width);
      const TensorView gains = random.integer(0, 3) > 0 ? weight.view() : TensorView();
      const InputRounding rounding = random_rounding(width);
      rms_norm(stream, x, gains, 1e-6f, y);
      expect_same(prepare_normed_input(stream, workspace, x, gains, 1e-6f, rounding),
                  prepare_linear_input(stream, workspace, y, rounding));
    }
  }
}

TEST_P(FusedInputTest, GatedInputIsTheInputOfTheProduct) {
  for (const Activation activation : {Activation::kGeluTanh, Activation::kSilu}) {
    for (const int64_t tokens : {0, 1, 5, 256, 259}) {
      for (const int64_t width : all_widths()) {
        const bool many = tokens >= 256;
        // Takes long; blocks of many tokens have up to 1024 columns, so one width has several.
        if (many && (width > (tokens == 259 ? 2200 : 1024) || (small_tests() && width != 64)))
          continue;
        Workspace::Scope scope(workspace);
        PaddedTensor gate({tokens, width}, random.integer(0, 4)), up({tokens, width}, many ? 4 : 1);
        PaddedTensor y({tokens, width}, 0);
        gate.fill_normal(random);
        up.fill_normal(random);
        const InputRounding rounding = random_rounding(width);
        activate_and_multiply(stream, activation, gate, up, y);
        const LinearInput expected = prepare_linear_input(stream, workspace, y, rounding);
        expect_same(prepare_gated_input(stream, workspace, activation, gate, up, rounding),
                    expected);
      }
    }
  }
}

TEST_P(FusedInputTest, SigmoidGatedInputIsTheInputOfTheProduct) {
  for (const int64_t tokens : {0, 1, 5, 256, 259}) {
    for (const int64_t width : all_widths()) {
      if (tokens >= 256 && width != 64) continue;
      Workspace::Scope scope(workspace);
      PaddedTensor gate({tokens, width}, random.integer(0, 4));
      PaddedTensor x({tokens, width}, tokens >= 256 ? 4 : 1), y({tokens, width}, 0);
      gate.fill_normal(random);
      x.fill_normal(random);
      y.copy_from(x);
      const InputRounding rounding = random_rounding(width);
      sigmoid_mul(stream, y, gate);
      const LinearInput expected = prepare_linear_input(stream, workspace, y, rounding);
      expect_same(prepare_sigmoid_gated_input(stream, workspace, gate, x, rounding), expected);
    }
  }
}

TEST_P(FusedInputTest, BranchesAreAddedAndTheirSumIsPassedOn) {
  for (const int64_t tokens : {0, 1, 4}) {
    for (const int64_t width : widths()) {
      for (size_t count = 0; count <= kMaxInputNorms; ++count) {
        Workspace::Scope scope(workspace);
        PaddedTensor x({tokens, width}, random.integer(0, 4)), y({tokens, width}, 2);
        PaddedTensor sum({tokens, width}, 0);
        x.fill_normal(random);
        y.fill_normal(random);
        sum.copy_from(x);
        const Tensor branch_weight = random_weight(width);
        const ResidualBranch branch{.y = y,
                                    .normed = random.integer(0, 1) > 0,
                                    .norm = branch_weight.view(),
                                    .epsilon = 1e-5f,
                                    .factor = random.pick({1.0f, 0.3f})};
        std::vector<Tensor> weights;
        std::vector<InputNorm> norms;
        std::vector<Tensor> rooms;
        for (size_t i = 0; i < count; ++i) {
          weights.push_back(random_weight(width));
          norms.push_back({weights.back().view(), 1e-6f, random_rounding(width)});
          if (random.integer(0, 1) > 0) {
            rooms.emplace_back(DType::kBF16, Shape{tokens, (width + 63) / 64 * 64}, device);
            norms.back().room = rooms.back().view();
          }
        }
        if (count > 1) norms.back() = norms.front();
        std::vector<LinearInput> inputs(count);
        add_branch(stream, workspace, branch, x, norms, inputs);
        EXPECT_TRUE(x.gaps_untouched());

        if (branch.normed) {
          add_rms_norm(stream, y, branch_weight.view(), 1e-5f, sum);
        } else {
          add(stream, sum, y);
        }
        scale(stream, sum, branch.factor);
        EXPECT_EQ(x.bits(), sum.bits()) << tokens << " × " << width;
        for (size_t i = 0; i < count; ++i) {
          PaddedTensor normed({tokens, width}, 0);
          rms_norm(stream, sum, norms[i].weight, norms[i].epsilon, normed);
          expect_same(inputs[i],
                      prepare_linear_input(stream, workspace, normed, norms[i].rounding));
        }
      }
    }
  }
}

TEST_P(FusedInputTest, GatedNormInputIsTheInputOfTheNorm) {
  for (const int64_t tokens : {0, 1, 3, 70}) {
    for (const int64_t heads : {1, 3, 8, 32, 33}) {
      if (small_tests() && heads != 3 && (heads != 33 || tokens > 3)) continue;
      for (const int64_t width : {96, 128}) {
        for (int trial = 0; trial < (small_tests() ? 1 : 3); ++trial) {
          const InputRounding rounding = random_rounding(heads * width);
          Workspace::Scope scope(workspace);
          PaddedTensor x({tokens, heads, width}, random.integer(0, 1) * 4);
          PaddedTensor gate({tokens, heads, width}, random.integer(0, 3));
          PaddedTensor expected({tokens, heads, width}, 0);
          x.fill_normal(random);
          gate.fill_normal(random, 3);
          const Tensor weight = random_weight(width);
          gated_rms_norm(stream, x, gate, weight, 1e-6f, expected);
          const TensorView rows = expected.view().reshape({tokens, heads * width});
          const LinearInput input =
              prepare_gated_norm_input(stream, workspace, x, gate, weight, 1e-6f, rounding);
          expect_same(input, prepare_linear_input(stream, workspace, rows, rounding));
          EXPECT_TRUE(x.gaps_untouched());
        }
      }
    }
  }
}

TEST_P(FusedInputTest, ExpertsAreCombinedWithTheDenseBranch) {
  constexpr int64_t kChoices = 5, kExperts = 11;
  for (const int64_t tokens : {0, 1, 7}) {
    for (const int64_t width : widths()) {
      Workspace::Scope scope(workspace);
      Tensor experts(DType::kI32, {tokens, kChoices}, device);
      for (int64_t t = 0; t < tokens; ++t) {
        const auto first = static_cast<int32_t>(random.integer(0, kExperts - 1));
        for (int64_t i = 0; i < kChoices; ++i) {
          experts.view().row<int32_t>(t)[i] = static_cast<int32_t>((first + 4 * i) % kExperts);
        }
      }
      PaddedTensor weights({tokens, kChoices}, 0), y({tokens * kChoices, width}, 1);
      PaddedTensor dense({tokens, width}, 3), expected({tokens, width}, 0);
      PaddedTensor combined({tokens, width}, 0);
      weights.fill_normal(random);
      y.fill_normal(random);
      dense.fill_normal(random);
      const Tensor dense_norm = random_weight(width), experts_norm = random_weight(width);
      const ExpertGroups groups = group_by_expert(stream, workspace, experts, kExperts);
      rms_norm(stream, dense, dense_norm, 1e-6f, expected);
      combine_experts(stream, y, groups, experts, weights, combined);
      add_rms_norm(stream, combined, experts_norm, 1e-6f, expected);
      combine_with_dense(stream, workspace, y, groups, experts, weights,
                         {dense_norm.view(), experts_norm.view(), 1e-6f}, dense);
      EXPECT_TRUE(dense.gaps_untouched());
      EXPECT_EQ(dense.bits(), expected.bits()) << tokens << " × " << width;
    }
  }
}

TEST_P(FusedInputTest, RoundedRowsOfExpertsAreCombinedAsTheNumbersThatTheyAre) {
  if (!on_cuda()) GTEST_SKIP() << "for devices";
  constexpr int64_t kChoices = 5, kExperts = 11;
  for (const int64_t tokens : {1, 7, 300}) {
    for (const int64_t width : {64, 516, 2816, 5120}) {
      if (small_tests() && tokens == 300 && width > 64) continue;
      Workspace::Scope scope(workspace);
      Tensor experts(DType::kI32, {tokens, kChoices}, device);
      for (int64_t t = 0; t < tokens; ++t) {
        const auto first = static_cast<int32_t>(random.integer(0, kExperts - 1));
        for (int64_t i = 0; i < kChoices; ++i) {
          experts.view().row<int32_t>(t)[i] = static_cast<int32_t>((first + 4 * i) % kExperts);
        }
      }
      PaddedTensor weights({tokens, kChoices}, 0), y({tokens * kChoices, width}, 0);
      PaddedTensor dense({tokens, width}, 4), expected({tokens, width}, 4);
      const Tensor rounded(DType::kBF16, {tokens * kChoices, width}, device);
      weights.fill_normal(random);
      for (int64_t i = 0; i < y.view().num_elements(); ++i) {
        const BFloat16 value = to_bfloat16(random.normal());
        static_cast<BFloat16*>(rounded.view().raw())[i] = value;
        y.row(0)[i] = to_float(value);
      }
      dense.fill_normal(random);
      expected.copy_from(dense);
      const Tensor dense_norm = random_weight(width), experts_norm = random_weight(width);
      const NormedBranches norms{dense_norm.view(), experts_norm.view(), 1e-6f};
      const ExpertGroups groups = group_by_expert(stream, workspace, experts, kExperts);
      combine_with_dense(stream, workspace, rounded, groups, experts, weights, norms, dense);
      combine_with_dense(stream, workspace, y, groups, experts, weights, norms, expected);
      EXPECT_TRUE(dense.gaps_untouched());
      EXPECT_EQ(dense.bits(), expected.bits()) << tokens << " × " << width;
    }
  }
}

TEST_P(FusedInputTest, GatheredRowsAreThoseOfTheInput) {
  for (const int64_t tokens : {1, 6}) {
    for (const int64_t width : all_widths()) {
      for (int trial = 0; trial < (small_tests() ? 2 : 6); ++trial) {
        const InputRounding rounding = random_rounding(width);
        Workspace::Scope scope(workspace);
        PaddedTensor x({tokens, width}, 1);
        x.fill_normal(random);
        Tensor rows(DType::kI32, {13}, device);
        PaddedTensor gathered({13, width}, 0);
        for (int64_t i = 0; i < 13; ++i) {
          const int64_t row = random.integer(0, tokens - 1);
          rows.data<int32_t>()[i] = static_cast<int32_t>(row);
          std::copy_n(x.row(row), width, gathered.row(i));
        }
        expect_same(gather_input(stream, workspace,
                                 prepare_linear_input(stream, workspace, x, rounding), rows),
                    prepare_linear_input(stream, workspace, gathered, rounding));
      }
    }
  }
}

BRAID_INSTANTIATE_PER_TARGET(FusedInputTest);

}  // namespace
}  // namespace braid

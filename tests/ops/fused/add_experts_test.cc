#include <cstring>

#include "ops/elementwise/elementwise.h"
#include "ops/fused/residual.h"
#include "ops/linear/random_weight.h"
#include "ops/norm/rms_norm.h"
#include "ops/op_test.h"

namespace braid {
namespace {

std::vector<uint16_t> packed_bits(const LinearInput& input) {
  std::vector<uint16_t> bits;
  for (int64_t t = 0; t < input.packed.dim(0); ++t) {
    const auto* row =
        static_cast<const uint16_t*>(input.packed.raw()) + t * input.packed.row_stride();
    bits.insert(bits.end(), row, row + input.x.dim(1));
  }
  return bits;
}

class AddExpertsTest : public OpTest {
 protected:
  struct Routed {
    Routed(Random& random, Workspace& workspace, Stream& stream, int64_t tokens, int64_t k,
           int64_t num_experts, int64_t width)
        : experts(DType::kI32, {tokens, k}, op_test_device),
          weights({tokens, k}, random.integer(0, 2)),
          rows({tokens * k, width}, 4 * random.integer(0, 1)) {
      std::vector<int32_t> ids(num_experts);
      for (int64_t e = 0; e < num_experts; ++e) ids[e] = static_cast<int32_t>(e);
      for (int64_t t = 0; t < tokens; ++t) {
        std::shuffle(ids.begin(), ids.end(), random.engine());
        std::copy_n(ids.begin(), k, experts.view().row<int32_t>(t));
      }
      weights.fill_normal(random);
      rows.fill_normal(random);
      groups = group_by_expert(stream, workspace, experts, num_experts);
    }
    ExpertRows all() const { return {rows, groups, experts, weights}; }

    Tensor experts;
    PaddedTensor weights, rows;
    ExpertGroups groups;
  };

  Tensor norm_weight(int64_t width) {
    Tensor weight(DType::kF32, {width}, device);
    for (float& w : weight.view().span<float>()) w = random.uniform(-2, 3);
    return weight;
  }
  // Sums of rows of up to 512 elements have another order in the single ops of a CUDA device.
  std::vector<int64_t> widths() const {
    return on_cuda() ? std::vector<int64_t>{516, 576, 1000, 2048, 2816, 4096}
                     : std::vector<int64_t>{1, 7, 64, 2048};
  }
  std::vector<InputNorm> random_norms(std::vector<Tensor>& weights, int64_t width) {
    std::vector<InputNorm> norms;
    const int64_t count = random.integer(0, 3);
    for (int64_t i = 0; i < count; ++i) {
      weights.push_back(norm_weight(width));
      norms.push_back({weights.back().view(), 1e-6f, {ActivationPrecision::kBF16, {}}});
    }
    return norms;
  }
  void expect_inputs(const std::vector<LinearInput>& inputs, const std::vector<InputNorm>& norms,
                     const PaddedTensor& sum) {
    for (size_t i = 0; i < norms.size(); ++i) {
      PaddedTensor normed({sum.view().dim(0), sum.view().dim(1)}, 0);
      rms_norm(stream, sum, norms[i].weight, norms[i].epsilon, normed);
      const LinearInput expected =
          prepare_linear_input(stream, workspace, normed, norms[i].rounding);
      if (expected.packed.rank() == 2) {
        EXPECT_EQ(packed_bits(inputs[i]), packed_bits(expected)) << "norm " << i;
      }
    }
  }
};

constexpr int64_t kTokens[] = {1, 2, 7, 8, 9, 31, 32, 33, 65};
struct Choice {
  int64_t k, experts;
};
constexpr Choice kChoices[] = {{1, 1}, {2, 7}, {8, 128}, {10, 512}, {11, 40}, {32, 32}};

// The gate's products are multiples of 2⁻⁶ that add up exactly in any order.
TEST_P(AddExpertsTest, IsTheSingleOpsInTurn) {
  for (const int64_t width : widths()) {
    for (const int64_t tokens : kTokens) {
      const Choice choice = kChoices[random.integer(0, std::ssize(kChoices) - 1)];
      SCOPED_TRACE(testing::Message()
                   << tokens << " × " << width << ", " << choice.k << " of " << choice.experts);
      Workspace::Scope scope(workspace);
      const Routed routed(random, workspace, stream, tokens, choice.k, choice.experts, width);
      const int64_t cols = random.pick({8, 64, 200, 2048, 4096 + 8});
      PaddedTensor x({tokens, width}, 4 * random.integer(0, 1)), sum({tokens, width}, 0);
      PaddedTensor shared({tokens, width}, 0), gate_x({tokens, cols}, 1), gate({tokens, 1}, 0);
      PaddedTensor combined({tokens, width}, 0);
      x.fill_normal(random);
      sum.copy_from(x);
      shared.fill_normal(random);
      Weight gate_weight = random_weight(random, FormatId::kBF16, {1, cols});
      std::vector<BFloat16> gates(cols);
      for (int64_t c = 0; c < cols; ++c) {
        const bool some = random.integer(0, cols) < 16;
        gates[c] = to_bfloat16(some ? static_cast<float>(random.integer(-4, 4)) / 8 : 0.0f);
        for (int64_t t = 0; t < tokens; ++t) {
          gate_x.row(t)[c] = static_cast<float>(random.integer(-8, 8)) / 8;
        }
      }
      const auto storage = std::make_shared<std::vector<BFloat16>>(gates);
      gate_weight.data = reinterpret_cast<const std::byte*>(storage->data());
      gate_weight.owner = storage;
      const Weight gate_there = on_target(gate_weight);
      const LinearInput gate_input =
          prepare_linear_input(stream, workspace, gate_x, ActivationPrecision::kBF16);
      std::vector<Tensor> weights;
      const std::vector<InputNorm> norms = random_norms(weights, width);
      std::vector<LinearInput> inputs(norms.size());
      add_experts(stream, workspace, routed.all(), {shared, gate_there, gate_input}, x, norms,
                  inputs);
      EXPECT_TRUE(x.gaps_untouched());

      combine_experts(stream, routed.rows, routed.groups, routed.experts, routed.weights, combined);
      linear(stream, gate_there, gate_input, gate);
      add_sigmoid_scaled(stream, combined, shared, gate);
      add(stream, sum, combined);
      EXPECT_EQ(x.bits(), sum.bits());
      expect_inputs(inputs, norms, sum);
    }
  }
}

TEST_P(AddExpertsTest, WithADenseBranchIsTheSingleOpsInTurn) {
  for (const int64_t width : widths()) {
    for (const int64_t tokens : kTokens) {
      const Choice choice = kChoices[random.integer(0, std::ssize(kChoices) - 1)];
      SCOPED_TRACE(testing::Message()
                   << tokens << " × " << width << ", " << choice.k << " of " << choice.experts);
      Workspace::Scope scope(workspace);
      const Routed routed(random, workspace, stream, tokens, choice.k, choice.experts, width);
      PaddedTensor x({tokens, width}, 4 * random.integer(0, 1)), sum({tokens, width}, 0);
      PaddedTensor dense({tokens, width}, 0), expected({tokens, width}, 0);
      x.fill_normal(random);
      sum.copy_from(x);
      dense.fill_normal(random);
      expected.copy_from(dense);
      const Tensor dense_norm = norm_weight(width), experts_norm = norm_weight(width);
      const Tensor branch_norm = norm_weight(width);
      const NormedBranches halves{dense_norm, experts_norm, 1e-6f};
      ResidualBranch branch{
          .y = dense, .norm = branch_norm, .epsilon = 1e-5f, .factor = random.pick({1.0f, 0.3f})};
      std::vector<Tensor> weights;
      const std::vector<InputNorm> norms = random_norms(weights, width);
      std::vector<LinearInput> inputs(norms.size());
      add_dense_and_experts(stream, workspace, routed.all(), halves, branch, x, norms, inputs);
      EXPECT_TRUE(x.gaps_untouched());

      combine_with_dense(stream, workspace, routed.rows, routed.groups, routed.experts,
                         routed.weights, halves, expected);
      add_rms_norm(stream, expected, branch_norm, branch.epsilon, sum);
      if (branch.factor != 1) scale(stream, sum, branch.factor);
      EXPECT_EQ(x.bits(), sum.bits());
      expect_inputs(inputs, norms, sum);
    }
  }
}

BRAID_INSTANTIATE_PER_TARGET(AddExpertsTest);

}  // namespace
}  // namespace braid

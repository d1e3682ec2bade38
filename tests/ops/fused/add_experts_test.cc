#include "ops/elementwise/elementwise.h"
#include "ops/fused/input_bytes.h"
#include "ops/fused/residual.h"
#include "ops/linear/random_weight.h"
#include "ops/norm/rms_norm.h"
#include "ops/op_test.h"

namespace braid {
namespace {

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
      if (stream.is_cpu() || random.integer(0, 1) == 0) return;
      logits = std::make_unique<PaddedTensor>(Shape{tokens, num_experts}, random.integer(0, 2));
      logits->fill_normal(random, 3);
      scale = Tensor(DType::kF32, {num_experts}, op_test_device);
      for (float& s : scale.view().span<float>()) s = random.uniform(0.1f, 2);
      const Router router{logits->view(), random.integer(0, 1) == 1 ? scale.view() : TensorView(),
                          random.pick({RouterSoftmax::kChosen, RouterSoftmax::kAll})};
      if (!route_in_place(stream, workspace, router, experts, in_place)) return;
      // The same in memory, for the single ops.
      groups = route_to_experts(stream, workspace, router.logits, router.expert_scale, experts,
                                weights, router.softmax);
      unread_experts = Tensor(DType::kI32, {tokens, k}, op_test_device);
      std::fill_n(unread_experts.view().data<int32_t>(), tokens * k, -1);
      unread_weights = std::make_unique<PaddedTensor>(Shape{tokens, k}, 0);
    }
    ExpertRows all() const {
      const TensorView& values = rounded.view().empty() ? rows.view() : rounded.view();
      if (in_place.router.logits.empty()) return {values, groups, experts, weights};
      return {values, in_place, unread_experts, *unread_weights};
    }
    // all().rows become bfloat16, `rows` the same numbers.
    void round() {
      const int64_t count = rows.view().dim(0), width = rows.row_elements();
      rounded = Tensor(DType::kBF16, {count, width}, op_test_device);
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t j = 0; j < width; ++j) {
          const BFloat16 value = to_bfloat16(rows.row(i)[j]);
          static_cast<BFloat16*>(rounded.view().raw())[i * width + j] = value;
          rows.row(i)[j] = to_float(value);
        }
      }
    }

    Tensor rounded;
    Tensor experts;
    PaddedTensor weights, rows;
    ExpertGroups groups;
    // Where the choices are found by the op.
    std::unique_ptr<PaddedTensor> logits, unread_weights;
    Tensor scale, unread_experts;
    ExpertGroups in_place;
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
  std::vector<int64_t> some_widths() {
    std::vector<int64_t> all = widths();
    std::shuffle(all.begin(), all.end(), random.engine());
    all.resize(small_tests() ? 1 : 2);
    return all;
  }
  // Of many tokens.
  std::vector<int64_t> many_widths() const {
    return small_tests() ? std::vector<int64_t>{520} : std::vector<int64_t>{576, 1000, 1024};
  }
  InputRounding rounding(int64_t width) {
    if (width % 32 == 0 && random.integer(0, 1) == 1) {
      return {ActivationPrecision::kInt8,
              {.per_block = random.integer(0, 1) == 1, .per_token = true}};
    }
    return {ActivationPrecision::kBF16, {}};
  }
  // Norms, and memory of theirs.
  struct Norms {
    std::vector<Tensor> tensors;
    std::vector<InputNorm> all;
  };
  Norms random_norms(int64_t tokens, int64_t width) {
    Norms norms;
    const int64_t count = random.integer(0, 3);
    for (int64_t i = 0; i < count; ++i) {
      norms.tensors.push_back(norm_weight(width));
      InputNorm norm{norms.tensors.back().view(), 1e-6f, rounding(width)};
      if (random.integer(0, 1) == 1) {
        norms.tensors.emplace_back(DType::kBF16, Shape{tokens, (width + 63) / 64 * 64}, device);
        norm.room = norms.tensors.back().view();
        norms.tensors.emplace_back(DType::kI8, Shape{tokens, width}, device);
        norm.code_room = norms.tensors.back().view();
        norms.tensors.emplace_back(DType::kF32, Shape{tokens}, device);
        norm.scale_room = norms.tensors.back().view();
      }
      norms.all.push_back(norm);
    }
    return norms;
  }
  void expect_inputs(const std::vector<LinearInput>& inputs, const std::vector<InputNorm>& norms,
                     const PaddedTensor& sum) {
    for (size_t i = 0; i < norms.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "norm " << i);
      PaddedTensor normed({sum.view().dim(0), sum.view().dim(1)}, 0);
      rms_norm(stream, sum, norms[i].weight, norms[i].epsilon, normed);
      expect_same(inputs[i], prepare_linear_input(stream, workspace, normed, norms[i].rounding));
      const LinearInput& input = inputs[i];
      if (norms[i].room.empty() || !stays_in_room(stream, sum, norms[i].rounding)) continue;
      if (input.packed.rank() == 2) {
        EXPECT_EQ(input.packed.raw(), norms[i].room.raw());
      }
      if (input.token_codes.rank() == 2) {
        EXPECT_EQ(input.token_codes.raw(), norms[i].code_room.raw());
        EXPECT_EQ(input.token_scales.raw(), norms[i].scale_room.raw());
      }
    }
  }
};

constexpr int64_t kTokens[] = {1, 2, 7, 8, 9, 31, 32, 33, 65, 257};
struct Choice {
  int64_t k, experts;
};
constexpr Choice kChoices[] = {{1, 1}, {2, 7}, {8, 128}, {10, 512}, {11, 40}, {32, 32}};

// The gate's products are multiples of 2⁻⁶ that add up exactly in any order.
TEST_P(AddExpertsTest, IsTheSingleOpsInTurn) {
  for (const int64_t tokens : kTokens) {
    const bool many = tokens > 256;
    for (const int64_t width : many ? many_widths() : some_widths()) {
      if (!many && tokens * width > (small_tests() ? 40000 : 300000)) continue;  // takes long
      const Choice choice = many ? kChoices[random.integer(1, 4)]
                            : tokens * width > 50000
                                ? kChoices[1]
                                : kChoices[random.integer(0, std::ssize(kChoices) - 1)];
      SCOPED_TRACE(testing::Message()
                   << tokens << " × " << width << ", " << choice.k << " of " << choice.experts);
      Workspace::Scope scope(workspace);
      Routed routed(random, workspace, stream, tokens, choice.k, choice.experts, width);
      if (on_cuda() && (many || random.integer(0, 1) == 1)) routed.round();
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
      const Norms norms = random_norms(tokens, width);
      std::vector<LinearInput> inputs(norms.all.size());
      add_experts(stream, workspace, routed.all(), {shared, gate_there, gate_input}, x, norms.all,
                  inputs);
      EXPECT_TRUE(x.gaps_untouched());

      combine_experts(stream, routed.rows, routed.groups, routed.experts, routed.weights, combined);
      linear(stream, gate_there, gate_input, gate);
      add_sigmoid_scaled(stream, combined, shared, gate);
      add(stream, sum, combined);
      EXPECT_EQ(x.bits(), sum.bits());
      expect_inputs(inputs, norms.all, sum);
    }
  }
}

TEST_P(AddExpertsTest, WithADenseBranchIsTheSingleOpsInTurn) {
  for (const int64_t tokens : kTokens) {
    for (const int64_t width : some_widths()) {
      if (tokens * width > (small_tests() ? 40000 : 300000)) continue;  // takes long to make up
      const Choice choice = tokens * width > 50000
                                ? kChoices[1]
                                : kChoices[random.integer(0, std::ssize(kChoices) - 1)];
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
      const Norms norms = random_norms(tokens, width);
      std::vector<LinearInput> inputs(norms.all.size());
      add_dense_and_experts(stream, workspace, routed.all(), halves, branch, x, norms.all, inputs);
      EXPECT_TRUE(x.gaps_untouched());

      combine_with_dense(stream, workspace, routed.rows, routed.groups, routed.experts,
                         routed.weights, halves, expected);
      add_rms_norm(stream, expected, branch_norm, branch.epsilon, sum);
      if (branch.factor != 1) scale(stream, sum, branch.factor);
      EXPECT_EQ(x.bits(), sum.bits());
      expect_inputs(inputs, norms.all, sum);
    }
  }
}

// With any gate: a token's results on a deterministic stream are those that it has alone.
TEST_P(AddExpertsTest, MatesChangeNothingOnADeterministicStream) {
  if (!on_cuda()) GTEST_SKIP() << "for devices";
  stream.cuda().set_deterministic(true);
  const int64_t k = 8, num_experts = 40;
  for (const int64_t tokens : {9, 257}) {
    const int64_t width = some_widths()[0], cols = random.pick({64, 200, 2048});
    Workspace::Scope scope(workspace);
    Routed routed(random, workspace, stream, tokens, k, num_experts, width);
    PaddedTensor x({tokens, width}, 0), shared({tokens, width}, 0), gate_x({tokens, cols}, 0);
    for (PaddedTensor* values : {&x, &shared, &gate_x}) values->fill_normal(random);
    PaddedTensor old({tokens, width}, 0);
    old.copy_from(x);
    const Weight gate = on_target(random_weight(random, FormatId::kBF16, {1, cols}));
    const auto run = [&](const ExpertRows& experts, const TensorView& sum, int64_t first) {
      const int64_t count = sum.dim(0);
      const LinearInput gate_input = prepare_linear_input(
          stream, workspace, gate_x.view().rows(first, count), ActivationPrecision::kBF16);
      add_experts(stream, workspace, experts, {shared.view().rows(first, count), gate, gate_input},
                  sum, {}, {});
    };
    run(routed.all(), x, 0);
    for (const int64_t t : {int64_t{0}, random.integer(1, tokens - 1)}) {
      PaddedTensor own_rows({k, width}, 0), sum({1, width}, 0);
      const auto ids = routed.experts.view().rows(t, 1);
      const ExpertGroups groups = group_by_expert(stream, workspace, ids, num_experts);
      for (int64_t choice = 0; choice < k; ++choice) {
        const int32_t from = routed.groups.places.data<int32_t>()[t * k + choice];
        std::copy_n(routed.rows.row(from), width,
                    own_rows.row(groups.places.data<int32_t>()[choice]));
      }
      std::copy_n(old.row(t), width, sum.row(0));
      run({own_rows, groups, ids, routed.weights.view().rows(t, 1)}, sum, t);
      for (int64_t i = 0; i < width; ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(sum.row(0)[i]), std::bit_cast<uint32_t>(x.row(t)[i]))
            << tokens << " tokens, element " << i;
      }
    }
  }
}

BRAID_INSTANTIATE_PER_TARGET(AddExpertsTest);

}  // namespace
}  // namespace braid

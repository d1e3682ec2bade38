#include "ops/fused/gated_mlps.h"
#include "ops/fused/residual.h"
#include "ops/linear/cuda/product_choice.h"
#include "ops/linear/random_weight.h"
#include "ops/op_test.h"

namespace braid {
namespace {

// Layers of experts beside a dense block, one behind the other, as models queue them: kernels begin
// before those in front of them are done, and some before that (StreamState::next_begins_ahead()).
class BeginAheadTest : public OpTest {
 protected:
  static constexpr int64_t kHidden = 768, kDense = 1024, kWidth = 256, kExperts = 24, kTopK = 4;
  static constexpr int kLayers = 12;

  struct Layer {
    Weight router, gate, up, down, experts, experts_down, shared_gate, next;
    Tensor norms[7];
  };

  Layer random_layer() {
    const auto matrix = [&](const Shape& shape) {
      return on_target(random_weight(random, FormatId::kBF16, shape));
    };
    Layer layer{.router = matrix({kExperts, kHidden}),
                .gate = matrix({kDense, kHidden}),
                .up = matrix({kDense, kHidden}),
                .down = matrix({kHidden, kDense}),
                .experts = matrix({kExperts, 2 * kWidth, kHidden}),
                .experts_down = matrix({kExperts, kHidden, kWidth}),
                .shared_gate = matrix({1, kHidden}),
                .next = matrix({kHidden, kHidden}),
                .norms = {}};
    for (Tensor& norm : layer.norms) {
      norm = Tensor(DType::kF32, {kHidden}, device);
      for (float& w : norm.view().span<float>()) w = random.uniform(0.1f, 2);
    }
    return layer;
  }

  // x and y in place, of which y is the first layer's branch.
  void run_layer(const Layer& w, bool shared, const TensorView& x, const TensorView& y) {
    static const Weight none;
    const int64_t tokens = x.dim(0);
    const auto norm = [&](int i) {
      return InputNorm{w.norms[i].view(), 1e-6f, {ActivationPrecision::kBF16, {}}};
    };
    const InputNorm norms[] = {norm(0), norm(1), norm(2)};
    LinearInput inputs[3];
    add_branch(stream, workspace, {.y = y, .norm = w.norms[3].view()}, x, norms, inputs);
    const TensorView logits = workspace.take(DType::kF32, {tokens, kExperts});
    const bool early = linear_in_front(stream, w.router, inputs[1], logits, int64_t{1} << 30);
    EXPECT_EQ(early, tokens > 1);
    const TensorView experts = workspace.take(DType::kI32, {tokens, kTopK});
    const TensorView weights = workspace.take(DType::kF32, {tokens, kTopK});
    ExpertGroups groups;
    if (!route_in_place(stream, workspace, {logits, {}}, experts, groups)) {
      groups = route_to_experts(stream, workspace, logits, {}, experts, weights);
    }
    const TensorView dense = workspace.take(DType::kF32, {tokens, kHidden});
    const TensorView rows = workspace.take(DType::kF32, {tokens * kTopK, kHidden});
    const GatedMlpCall calls[] = {
        {Activation::kSilu, &w.gate, &w.up, &w.down, &inputs[0], nullptr, dense, early},
        {Activation::kSilu, &w.experts, &none, &w.experts_down, &inputs[2], &groups, rows}};
    ASSERT_TRUE(gated_mlps(stream, workspace, calls));
    const InputNorm next[] = {norm(4)};
    LinearInput made[1];
    const ExpertRows routed{rows, groups, experts, weights};
    if (shared) {
      add_experts(stream, workspace, routed, {dense, w.shared_gate, inputs[0]}, x, next, made);
    } else {
      add_dense_and_experts(stream, workspace, routed, {w.norms[5].view(), w.norms[6].view()},
                            {.y = dense, .norm = w.norms[3].view()}, x, next, made);
    }
    linear(stream, w.next, made[0], y);
  }

  std::vector<uint32_t> run(const std::vector<Layer>& layers, const PaddedTensor& first_x,
                            const PaddedTensor& first_y, bool synchronous) {
    Workspace::Scope scope(workspace);
    stream.cuda().set_synchronous(synchronous);
    PaddedTensor x(first_x.view().shape(), 0), y(first_y.view().shape(), 0);
    x.copy_from(first_x);
    y.copy_from(first_y);
    for (int i = 0; i < kLayers; ++i) {
      run_layer(layers[static_cast<size_t>(i) % layers.size()], i % 2 == 1, x, y);
    }
    stream.synchronize();
    stream.cuda().set_synchronous(true);
    return x.bits();
  }
};

TEST_P(BeginAheadTest, LayersAreWhatTheyAreOneByOne) {
  if (!on_cuda() || !stream.cuda().overlaps_kernels()) GTEST_SKIP() << "for devices from Hopper on";
  const cuda::ProductTable constants;
  const cuda::ProductTableScope scope(constants);
  std::vector<Layer> layers;
  for (int i = 0; i < 3; ++i) layers.push_back(random_layer());
  for (const int64_t tokens : {1, 3, 8, 9}) {
    PaddedTensor x({tokens, kHidden}, 0), y({tokens, kHidden}, 0);
    x.fill_normal(random);
    y.fill_normal(random);
    const std::vector<uint32_t> expected = run(layers, x, y, true);
    for (const uint32_t bits : expected) ASSERT_TRUE(std::isfinite(std::bit_cast<float>(bits)));
    for (int turn = 0; turn < (small_tests() ? 1 : 10); ++turn) {
      ASSERT_EQ(run(layers, x, y, false), expected) << tokens << " tokens, turn " << turn;
    }
  }
}

BRAID_INSTANTIATE_PER_TARGET(BeginAheadTest);

}  // namespace
}  // namespace braid

#include "ops/fused/delta_step.h"

#include <algorithm>
#include <numeric>

#include "ops/conv/causal_conv.h"
#include "ops/fused/input_bytes.h"
#include "ops/linear/random_weight.h"
#include "ops/norm/rms_norm.h"
#include "ops/op_test.h"
#include "tensor/cuda/stream_state.h"

namespace braid {
namespace {

struct Dims {
  int64_t key_heads, ratio, key_dim, value_dim, conv_width, cols;
  ValueHeadOrder order;

  int64_t value_heads() const { return key_heads * ratio; }
  int64_t key_width() const { return key_heads * key_dim; }
  int64_t value_width() const { return value_heads() * value_dim; }
  int64_t channels() const { return 2 * key_width() + value_width(); }
};

// A layer's slots, with what a logged step leaves.
struct Store {
  Store(const Dims& d, int64_t slots, int64_t logged)
      : states(DType::kF32, {slots, d.value_heads(), d.value_dim, d.key_dim}, op_test_device),
        conv(DType::kF32, {slots, d.conv_width - 1 + logged, d.channels()}, op_test_device),
        keys(DType::kF32, {slots, logged, d.key_heads, d.key_dim}, op_test_device),
        updates(DType::kF32, {slots, logged, d.value_heads(), d.value_dim}, op_test_device),
        decays(DType::kF32, {slots, logged, d.value_heads()}, op_test_device) {
    layer = {.states = states,
             .conv_rows = conv,
             .logged_keys = keys,
             .logged_updates = updates,
             .logged_decays = decays};
  }
  void fill(Random& random) {
    for (const Tensor* t : all()) {
      for (float& x : t->view().span<float>()) x = random.normal(0.3f);
    }
  }
  void copy_from(const Store& other) {
    const auto from = other.all(), to = all();
    for (size_t i = 0; i < to.size(); ++i) {
      std::ranges::copy(from[i]->view().span<float>(), to[i]->data<float>());
    }
  }
  std::array<const Tensor*, 5> all() const { return {&states, &conv, &keys, &updates, &decays}; }

  Tensor states, conv, keys, updates, decays;
  RecurrentLayer layer;
};

bool same_bits(const Tensor& a, const Tensor& b) {
  const auto x = a.view().span<float>(), y = b.view().span<float>();
  return std::equal(x.begin(), x.end(), y.begin(), [](float u, float v) {
    return std::bit_cast<uint32_t>(u) == std::bit_cast<uint32_t>(v);
  });
}

class DeltaStepTest : public OpTest {
 protected:
  // tokens: large states take long to make up.
  Dims random_dims(int64_t tokens) {
    Dims d{.key_heads = random.pick({1, 2, 4}),
           .ratio = random.pick({1, 2, 3, 4, 8}),
           .key_dim = random.pick({4, 16, 64, 100, 128}),
           .value_dim = random.pick({16, 32, 64, 128}),
           .conv_width = random.integer(2, 4),
           .cols = random.pick({8, 72, 2048, 2056}),
           .order = random.pick({ValueHeadOrder::kGrouped, ValueHeadOrder::kTiled})};
    if (random.integer(0, 1) == 0) d.key_dim = d.value_dim = 128;
    if (small_tests()) {
      d.key_heads = std::min<int64_t>(d.key_heads, 2);
      d.ratio = std::min<int64_t>(d.ratio, 4);
    }
    if (tokens > 9) {
      d.key_heads = 2;
      d.ratio = random.integer(1, 2);
    }
    while (d.value_width() % 64 != 0) d.value_dim *= 2;
    return d;
  }
  // Few entries, multiples of 1/8 of which products with such inputs add up exactly in any order.
  Weight exact_weight(int64_t rows, int64_t cols) {
    Weight w;
    w.format = &quant_format(FormatId::kBF16);
    w.shape = Shape{rows, cols};
    const auto values = std::make_shared<std::vector<BFloat16>>(rows * cols);
    for (BFloat16& x : *values) {
      const bool some = random.integer(0, cols) < 12;
      x = to_bfloat16(some ? static_cast<float>(random.integer(-8, 8)) / 8 : 0.0f);
    }
    w.data = reinterpret_cast<const std::byte*>(values->data());
    w.owner = values;
    return on_target(w);
  }
  Tensor random_tensor(const Shape& shape, float low, float high) {
    Tensor tensor(DType::kF32, shape, device);
    for (float& x : tensor.view().span<float>()) x = random.uniform(low, high);
    return tensor;
  }
  // For up to 16 sequences.
  bool has_pass() const { return on_cuda() && stream.cuda().overlaps_kernels(); }
};

TEST_P(DeltaStepTest, IsTheSingleOpsInTurn) {
  for (const int64_t tokens : {1, 2, 7, 8, 9, 15, 16, 17, 33}) {
    if (small_tests() && (tokens == 2 || tokens == 7 || tokens == 15 || tokens == 33)) continue;
    for (int round = 0; round < (small_tests() ? 1 : tokens < 10 ? 3 : 2); ++round) {
      const Dims d = random_dims(tokens);
      SCOPED_TRACE(testing::Message()
                   << tokens << " tokens, " << d.key_heads << " × " << d.ratio << " heads, "
                   << d.key_dim << " × " << d.value_dim << ", convolution of " << d.conv_width
                   << ", " << d.cols << " columns, order " << static_cast<int>(d.order));
      Workspace::Scope scope(workspace);
      constexpr int64_t kLogged = 3;
      Store store(d, tokens + 1, kLogged), expected(d, tokens + 1, kLogged);
      store.fill(random);
      expected.copy_from(store);
      std::vector<int32_t> slots(tokens + 1);
      std::iota(slots.begin(), slots.end(), 0);
      std::shuffle(slots.begin(), slots.end(), random.engine());
      std::vector<RecurrentRows> sequences;
      for (int64_t t = 0; t < tokens; ++t) {
        const bool fresh = random.integer(0, 4) == 0;
        sequences.push_back(
            {.first_row = t,
             .num_rows = 1,
             .slot = slots[t],
             .fresh = fresh,
             .num_replayed =
                 fresh ? 0 : static_cast<int32_t>(random.integer(0, random.pick({0, 3})))});
      }
      std::shuffle(sequences.begin(), sequences.end(), random.engine());
      PaddedTensor raw({tokens, d.channels()}, random.integer(0, 3));
      PaddedTensor z({tokens, d.value_width()}, 4 * random.integer(0, 1));
      PaddedTensor x({tokens, d.cols}, 0), mixed({tokens, d.channels()}, 0);
      PaddedTensor b({tokens, d.value_heads()}, 0), a({tokens, d.value_heads()}, 0);
      PaddedTensor out({tokens, d.value_heads(), d.value_dim}, 0);
      raw.fill_normal(random);
      z.fill_normal(random);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t c = 0; c < d.cols; ++c) {
          x.row(t)[c] = static_cast<float>(random.integer(-8, 8)) / 8;
        }
      }
      const Weight b_weight = exact_weight(d.value_heads(), d.cols);
      const Weight a_weight = exact_weight(d.value_heads(), d.cols);
      const Tensor conv = random_tensor({d.channels(), d.conv_width}, -1, 1);
      const Tensor rate = random_tensor({d.value_heads()}, -2, 0);
      const Tensor dt_bias = random_tensor({d.value_heads()}, -4, 4);
      const Tensor norm = random_tensor({d.value_dim}, -2, 3);
      InputRounding rounding{ActivationPrecision::kBF16, {}};
      const LinearInput input = prepare_linear_input(stream, workspace, x, rounding);
      if (random.integer(0, 2) == 0) {
        rounding = {ActivationPrecision::kInt8,
                    {.per_block = random.integer(0, 1) == 1, .per_token = true}};
      }
      const DeltaStepCall call{.raw = raw,
                               .conv = conv,
                               .z = z,
                               .x = input,
                               .b_weight = b_weight,
                               .a_weight = a_weight,
                               .rate = rate,
                               .dt_bias = dt_bias,
                               .norm = norm,
                               .key_heads = d.key_heads,
                               .key_dim = d.key_dim,
                               .value_heads = d.value_heads(),
                               .value_dim = d.value_dim,
                               .order = d.order,
                               .rounding = rounding};
      const auto result = delta_step(stream, workspace, call, store.layer, sequences);
      ASSERT_EQ(result.has_value(), has_pass() && tokens <= 16);
      if (!result) {
        for (size_t i = 0; i < store.all().size(); ++i) {
          EXPECT_TRUE(same_bits(*store.all()[i], *expected.all()[i])) << "tensor " << i;
        }
        continue;
      }

      linear(stream, b_weight, input, b);
      linear(stream, a_weight, input, a);
      causal_conv_silu(stream, raw, conv, expected.layer, sequences, mixed);
      const Shape key_shape{tokens, d.key_heads, d.key_dim};
      const TensorView all = mixed;
      const GatedDeltaInputs inputs{
          .q = all.columns(0, d.key_width()).reshape(key_shape),
          .k = all.columns(d.key_width(), d.key_width()).reshape(key_shape),
          .v = all.columns(2 * d.key_width(), d.value_width())
                   .reshape({tokens, d.value_heads(), d.value_dim}),
          .b = b,
          .a = a,
          .rate = rate,
          .dt_bias = dt_bias};
      gated_delta(stream, workspace, inputs, expected.layer, sequences, {.order = d.order}, out);
      gated_rms_norm(stream, out, z.view().reshape({tokens, d.value_heads(), d.value_dim}), norm,
                     1e-6f, out);
      const LinearInput rows = prepare_linear_input(
          stream, workspace, out.view().reshape({tokens, d.value_width()}), rounding);
      expect_same(*result, rows);
      // The log stays, and the rows kept that no one will read.
      EXPECT_TRUE(same_bits(store.states, expected.states));
      EXPECT_TRUE(same_bits(store.conv, expected.conv));
      for (size_t i = 2; i < store.all().size(); ++i) {
        EXPECT_TRUE(same_bits(*store.all()[i], *expected.all()[i])) << "tensor " << i;
      }
    }
  }
}

// What it is not for is left to the single ops.
TEST_P(DeltaStepTest, OtherStepsAreLeftAlone) {
  const Dims d{.key_heads = 2,
               .ratio = 2,
               .key_dim = 64,
               .value_dim = 64,
               .conv_width = 4,
               .cols = 64,
               .order = ValueHeadOrder::kGrouped};
  Store store(d, 2, 2);
  PaddedTensor raw({2, d.channels()}, 0), z({2, d.value_width()}, 0), x({2, d.cols}, 0);
  raw.fill_normal(random);
  z.fill_normal(random);
  x.fill_normal(random);
  const Weight w = exact_weight(d.value_heads(), d.cols);
  const Tensor conv = random_tensor({d.channels(), d.conv_width}, -1, 1);
  const Tensor heads = random_tensor({d.value_heads()}, -2, 0), norm = random_tensor({64}, 0, 1);
  const auto run = [&](std::vector<RecurrentRows> sequences, ActivationPrecision precision) {
    Workspace::Scope scope(workspace);
    const LinearInput input = prepare_linear_input(stream, workspace, x, precision);
    const DeltaStepCall call{.raw = raw,
                             .conv = conv,
                             .z = z,
                             .x = input,
                             .b_weight = w,
                             .a_weight = w,
                             .rate = heads,
                             .dt_bias = heads,
                             .norm = norm,
                             .key_heads = d.key_heads,
                             .key_dim = d.key_dim,
                             .value_heads = d.value_heads(),
                             .value_dim = d.value_dim,
                             .order = d.order,
                             .rounding = {precision, {}}};
    return delta_step(stream, workspace, call, store.layer, sequences).has_value();
  };
  const RecurrentRows first{.first_row = 0, .num_rows = 1, .slot = 0, .fresh = true};
  const RecurrentRows second{.first_row = 1, .num_rows = 1, .slot = 1, .fresh = true};
  EXPECT_EQ(run({first, second}, ActivationPrecision::kBF16), has_pass());
  EXPECT_FALSE(run({first, second}, ActivationPrecision::kF32));
  EXPECT_FALSE(run({{.num_rows = 2, .fresh = true}}, ActivationPrecision::kBF16));
  RecurrentRows logged = second;
  logged.logged = true;
  EXPECT_FALSE(run({first, logged}, ActivationPrecision::kBF16));
  if (on_cuda()) {
    stream.cuda().set_deterministic(true);
    EXPECT_FALSE(run({first, second}, ActivationPrecision::kBF16));
    stream.cuda().set_deterministic(false);
  }
}

BRAID_INSTANTIATE_PER_TARGET(DeltaStepTest);

}  // namespace
}  // namespace braid

// The bytes and operations that ops tell a profiler, against arithmetic by hand.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/linear/linear.h"
#include "tensor/profiler.h"
#include "tensor/tensor.h"

namespace braid {
namespace {

class OpWorkTest : public ::testing::Test {
 protected:
  OpWorkTest() { stream_.set_profiler(&profiler_); }

  Profiler::Entry entry(std::string_view op) const {
    for (const Profiler::Entry& each : profiler_.entries()) {
      if (each.op == op) return each;
    }
    ADD_FAILURE() << "no op " << op;
    return {};
  }
  static double operations(const Profiler::Entry& entry, Arithmetic arithmetic) {
    return entry.operations[static_cast<int>(arithmetic)];
  }
  static Weight zeros(FormatId id, const Shape& shape) {
    Weight weight{.format = &quant_format(id), .shape = shape};
    const auto buffer =
        std::make_shared<Buffer>(static_cast<size_t>(weight.size_bytes()), Device{});
    weight.data = buffer->data();
    weight.owner = buffer;
    return weight;
  }

  ThreadPool threads_{{.num_threads = 1}};
  Stream stream_{threads_};
  Workspace workspace_{size_t{1} << 26};
  Profiler profiler_;
};

TEST_F(OpWorkTest, LinearReadsItsMatrixOnce) {
  const Tensor x(DType::kF32, {5, 64}), y(DType::kF32, {5, 96});
  linear(stream_, zeros(FormatId::kQ4_0, {96, 64}),
         prepare_linear_input(stream_, workspace_, x, ActivationPrecision::kInt8), y);
  const Profiler::Entry product = entry("linear");
  EXPECT_EQ(product.operand, "q4_0");
  EXPECT_EQ(product.weight_bytes, 96 * 2 * 18);  // two blocks of 18 bytes a row
  EXPECT_EQ(product.state_bytes, 0);
  EXPECT_EQ(operations(product, Arithmetic::kInt8), 2.0 * 5 * 96 * 64);
  EXPECT_EQ(operations(product, Arithmetic::kF32), 0);
}

TEST_F(OpWorkTest, PlainWeightsAreComputedInF32) {
  const Tensor x(DType::kF32, {3, 64}), y(DType::kF32, {3, 8});
  linear(stream_, zeros(FormatId::kBF16, {8, 64}),
         prepare_linear_input(stream_, workspace_, x, ActivationPrecision::kInt8), y);
  EXPECT_EQ(entry("linear").weight_bytes, 8 * 64 * 2);
  EXPECT_EQ(operations(entry("linear"), Arithmetic::kF32), 2.0 * 3 * 8 * 64);
}

TEST_F(OpWorkTest, OnlyExpertsWithTokensAreRead) {
  const Tensor x(DType::kF32, {6, 32}), y(DType::kF32, {6, 16});
  const std::vector<int32_t> offsets = {0, 4, 4, 4, 5, 6};  // experts 0, 3 and 4 of 5
  grouped_linear(stream_, zeros(FormatId::kQ8_0, {5, 16, 32}),
                 prepare_linear_input(stream_, workspace_, x, ActivationPrecision::kInt8), offsets,
                 y);
  const Profiler::Entry product = entry("grouped_linear");
  EXPECT_EQ(product.weight_bytes, 3 * 16 * 34);
  EXPECT_EQ(operations(product, Arithmetic::kInt8), 2.0 * 6 * 16 * 32);
}

TEST_F(OpWorkTest, AttentionReadsTheKeysItSees) {
  const Shape cache_shape{8, 2, 16, 8};  // pages of 16 tokens, 2 KV heads of 8
  const Tensor keys(DType::kBF16, cache_shape), values(DType::kBF16, cache_shape);
  const Tensor k(DType::kF32, {4, 2, 8}), v(DType::kF32, {4, 2, 8});
  const Tensor q(DType::kF32, {4, 4, 8}), out(DType::kF32, {4, 4, 8});
  const std::vector<int32_t> first = {0, 1, 2, 3}, second = {4, 5};
  // Rows at positions 40, 41, 42; and one at position 5.
  const std::vector<SequenceRows> sequences = {{0, 3, 40, first}, {3, 1, 5, second}};
  write_kv(stream_, k, v, sequences, {keys, values});
  EXPECT_EQ(entry("write_kv").state_bytes, 4 * 2 * 2 * 8 * 2);  // tokens, k and v, heads, dim, bf16
  attention(stream_, workspace_, q, {keys, values}, sequences, {.scale = 1}, out);
  Profiler::Entry all = entry("attention");
  constexpr double kTokenBytes = 2 * 2 * 8 * 2;
  EXPECT_EQ(all.state_bytes, (43 + 6) * kTokenBytes);
  constexpr double kKeyOperations = 4 * 4 * 8;  // two products of 4 heads of 8
  EXPECT_EQ(operations(all, Arithmetic::kF32), (41 + 42 + 43 + 6) * kKeyOperations);

  profiler_.reset();
  attention(stream_, workspace_, q, {keys, values}, sequences, {.scale = 1, .window = 10}, out);
  all = entry("attention");
  EXPECT_EQ(all.state_bytes, (12 + 6) * kTokenBytes);  // positions 31 to 42, and 0 to 5
  EXPECT_EQ(operations(all, Arithmetic::kF32), (3 * 10 + 6) * kKeyOperations);
}

TEST_F(OpWorkTest, GatedDeltaReadsAndWritesStates) {
  constexpr int64_t kTokens = 3, kKeyHeads = 1, kValueHeads = 2, kDim = 8, kSlots = 3, kLog = 2;
  const Tensor q(DType::kF32, {kTokens, kKeyHeads, kDim}),
      k(DType::kF32, {kTokens, kKeyHeads, kDim});
  const Tensor v(DType::kF32, {kTokens, kValueHeads, kDim}), b(DType::kF32, {kTokens, kValueHeads});
  const Tensor a(DType::kF32, {kTokens, kValueHeads}), rate(DType::kF32, {kValueHeads});
  const Tensor bias(DType::kF32, {kValueHeads}), out(DType::kF32, {kTokens, kValueHeads, kDim});
  const Tensor states(DType::kF32, {kSlots, kValueHeads, kDim, kDim});
  const Tensor conv_rows(DType::kF32, {kSlots, 1, 8});
  const Tensor logged_keys(DType::kF32, {kSlots, kLog, kKeyHeads, kDim});
  const Tensor logged_updates(DType::kF32, {kSlots, kLog, kValueHeads, kDim});
  const Tensor logged_decays(DType::kF32, {kSlots, kLog, kValueHeads});
  const RecurrentLayer layer{states, conv_rows, logged_keys, logged_updates, logged_decays};
  const GatedDeltaInputs inputs{q, k, v, b, a, rate, bias};
  // One goes on, one starts afresh, one is logged and leaves its state.
  const std::vector<RecurrentRows> sequences = {
      {.first_row = 0, .num_rows = 1, .slot = 0},
      {.first_row = 1, .num_rows = 1, .slot = 1, .fresh = true},
      {.first_row = 2, .num_rows = 1, .slot = 2, .logged = true}};
  gated_delta(stream_, workspace_, inputs, layer, sequences, {}, out);
  const Profiler::Entry rule = entry("gated_delta");
  constexpr double kState = kValueHeads * kDim * kDim;
  EXPECT_EQ(rule.state_bytes, (2 + 1 + 1) * 4 * kState);
  EXPECT_EQ(operations(rule, Arithmetic::kF32), 3 * 6 * kState);
}

}  // namespace
}  // namespace braid

#include <cmath>
#include <numeric>

#include "ops/fused/attend_heads.h"
#include "ops/fused/twin_stores.h"
#include "ops/op_test.h"

namespace braid {
namespace {

// attend_heads() of steps with more than a row a sequence.
class AttendPromptsTest : public OpTest {
 protected:
  static constexpr int64_t kPageTokens = 16;

  // singles: one row of each sequence.
  void check(DType dtype, int64_t head_dim, int64_t window, bool stores, bool values_from_keys,
             bool singles = false) {
    const int64_t kv_heads = random.integer(1, small_tests() ? 2 : 4);
    const int64_t group =
        small_tests() ? random.pick<int64_t>({1, 2, 5}) : random.pick<int64_t>({1, 2, 5, 16});
    const int64_t heads = kv_heads * group;
    SCOPED_TRACE(fmt::format("{}, head {}, {} x {} heads, window {}, {}{}", dtype_name(dtype),
                             head_dim, kv_heads, group, window, stores ? "" : "borrowed ",
                             values_from_keys ? "values from keys" : ""));
    Workspace::Scope scope(workspace);
    struct Part {
      int64_t rows, position;
    };
    Part parts[] = {{1, random.integer(0, 90)},
                    {random.integer(2, 9), random.integer(0, 100)},
                    {random.integer(65, 140), random.integer(0, 40)},
                    {64, 0}};
    if (singles) {
      for (Part& part : parts) part.rows = 1;
    }
    std::vector<std::vector<int32_t>> pages;
    std::vector<SequenceRows> sequences;
    int64_t tokens = 0, num_pages = 0;
    for (const Part& part : parts) {
      pages.emplace_back(static_cast<size_t>((part.position + part.rows) / kPageTokens + 1));
      num_pages += static_cast<int64_t>(pages.back().size());
    }
    std::vector<int32_t> order(static_cast<size_t>(num_pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random.engine());
    size_t next = 0;
    for (size_t i = 0; i < pages.size(); ++i) {
      for (int32_t& page : pages[i]) page = order[next++];
      sequences.push_back({tokens, parts[i].rows, parts[i].position, pages[i]});
      tokens += parts[i].rows;
    }
    const TwinStores twins(dtype, {num_pages, kv_heads, kPageTokens, head_dim}, device, random);
    const PagedKv cache = twins.cache(), other = twins.other();
    const Shape q_shape{tokens, heads, head_dim}, k_shape{tokens, kv_heads, head_dim};
    PaddedTensor q(q_shape, 4), k(k_shape, 4), v(k_shape, 4);
    for (PaddedTensor* x : {&q, &k, &v}) x->fill_normal(random);
    PaddedTensor other_q(q_shape, 4), other_k(k_shape, 4), other_v(k_shape, 4);
    other_q.copy_from(q);
    other_k.copy_from(k);
    other_v.copy_from(v);
    const int64_t pairs = random.pick({head_dim / 2, head_dim / 4});
    PaddedTensor cos({tokens, pairs}, 0), sin({tokens, pairs}, 0);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < pairs; ++i) {
        const float angle = random.uniform(-3, 3);
        cos.row(t)[i] = std::cos(angle), sin.row(t)[i] = std::sin(angle);
      }
    }
    Tensor norms(DType::kF32, {2, head_dim}, device);
    for (float& w : norms.view().span<float>()) w = random.uniform(0.2f, 1.5f);
    const HeadOptions options{.q_norm = norms.view().rows(0, 1).reshape({head_dim}),
                              .k_norm = norms.view().rows(1, 1).reshape({head_dim}),
                              .normed_values = values_from_keys,
                              .epsilon = 1e-6f,
                              .cos = cos.view(),
                              .sin = sin.view(),
                              .pair_distance = head_dim / 2};
    const AttentionOptions attention_options{
        .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim))),
        .window = window};
    const TensorView none;
    const auto done = attend_heads(stream, workspace,
                                   {q.view(), stores ? k.view() : none,
                                    stores ? (values_from_keys ? k.view() : v.view()) : none,
                                    options, attention_options, sequences, cache},
                                   true);
    ASSERT_EQ(done.has_value(), on_cuda());
    if (!done) return;
    if (stores) {
      prepare_heads(stream, workspace, other_q, other_k,
                    values_from_keys ? other_k.view() : other_v.view(), options, sequences, other);
    } else {
      prepare_queries(stream, other_q, options);
    }
    PaddedTensor expected(q_shape, 0);
    attention(stream, workspace, other_q, other, sequences, attention_options, expected);
    EXPECT_TRUE(twins.are_equal()) << "the cache";
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < heads * head_dim; ++i) {
        ASSERT_EQ(std::bit_cast<uint16_t>(done->packed.row<BFloat16>(t)[i]),
                  std::bit_cast<uint16_t>(to_bfloat16(expected.row(t)[i])))
            << "token " << t << ", element " << i << ": "
            << to_float(done->packed.row<BFloat16>(t)[i]) << " for " << expected.row(t)[i];
      }
    }
  }
};

TEST_P(AttendPromptsTest, GiveTheBitsOfTheOpsInTurn) {
  for (const DType dtype : {DType::kBF16, DType::kI8}) {
    for (const int64_t head_dim : {256, 512}) {
      for (const int64_t window : {0, 30, 64, 100}) {
        if (small_tests() && window != 0 && window != 30) continue;
        check(dtype, head_dim, window, random.integer(0, 3) > 0, random.integer(0, 1) == 1);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// There single rows are computed as those of prompts are.
TEST_P(AttendPromptsTest, GiveThemOnADeterministicStreamToo) {
  if (!on_cuda()) GTEST_SKIP() << "for devices";
  stream.cuda().set_deterministic(true);
  for (const DType dtype : {DType::kBF16, DType::kI8}) {
    for (const int64_t head_dim : {256, 512}) {
      for (const bool singles : {false, true}) {
        check(dtype, head_dim, random.pick({0, 30, 64, 100}), random.integer(0, 3) > 0,
              random.integer(0, 1) == 1, singles);
        if (HasFatalFailure()) return;
      }
    }
  }
}

BRAID_INSTANTIATE_PER_TARGET(AttendPromptsTest);

}  // namespace
}  // namespace braid

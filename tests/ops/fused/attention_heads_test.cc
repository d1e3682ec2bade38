#include "ops/fused/attention_heads.h"

#include "ops/attention/attention.h"
#include "ops/norm/rms_norm.h"
#include "ops/op_test.h"
#include "ops/rope/rope.h"

namespace braid {
namespace {

class AttentionHeadsTest : public OpTest {
 protected:
  struct Cache {
    Cache(DType dtype, int64_t kv_heads, int64_t head_dim, Device device)
        : keys(dtype, {6, kv_heads, 8, head_dim}, device),
          values(dtype, {6, kv_heads, 8, head_dim}, device),
          key_scales(DType::kF32, {6, kv_heads, 8}, device),
          value_scales(DType::kF32, {6, kv_heads, 8}, device) {}
    PagedKv view() const {
      if (keys.dtype() != DType::kI8) return {keys, values, {}, {}};
      return {keys, values, key_scales, value_scales, static_scales};
    }
    std::vector<std::byte> bytes() const {
      std::vector<std::byte> all;
      for (const Tensor* tensor : {&keys, &values, &key_scales, &value_scales}) {
        const auto* data = static_cast<const std::byte*>(tensor->view().raw());
        all.insert(all.end(), data,
                   data + tensor->view().num_elements() * dtype_bytes(tensor->dtype()));
      }
      return all;
    }
    Tensor keys, values, key_scales, value_scales;  // scales: zeros unless int8
    KvScales static_scales = {};
  };

  Tensor random_weight(int64_t width) {
    Tensor weight(DType::kF32, {width}, device);
    for (float& w : weight.view().span<float>()) w = random.uniform(-2, 3);
    return weight;
  }
};

// Against the ops in turn, for head sizes with a kernel of their own and without. Static scales are
// such that numbers are clamped; of int8, a key is not finite.
TEST_P(AttentionHeadsTest, AreNormedTurnedAndStored) {
  struct Store {
    DType dtype;
    KvScales static_scales = {};
  };
  const Store stores[] = {
      {DType::kF32},
      {DType::kBF16},
      {DType::kI8},
      {DType::kI8, {random.uniform(0.01f, 0.03f), random.uniform(0.01f, 0.03f)}}};
  for (const int64_t head_dim : {16, 64, 96, 128, 256, 512}) {
    for (const auto& [dtype, static_scales] : stores) {
      for (const bool values_from_keys : {false, true}) {
        if (small_tests() && values_from_keys != (random.integer(0, 1) == 1)) continue;
        Workspace::Scope scope(workspace);
        const int64_t kv_heads = random.integer(1, 3), heads = kv_heads * random.integer(1, 4);
        const int64_t tokens = 11;
        const bool normed_values = values_from_keys || random.integer(0, 1) > 0;
        PaddedTensor q({tokens, heads, head_dim}, 4), k({tokens, kv_heads, head_dim}, 4);
        PaddedTensor v({tokens, kv_heads, head_dim}, 4);
        q.fill_normal(random);
        k.fill_normal(random);
        v.fill_normal(random);
        if (dtype == DType::kI8) k.row(random.integer(0, tokens - 1))[0] = kNan;
        const int64_t pairs = random.pick({head_dim / 2, head_dim / 4});
        const int64_t distance = random.pick({head_dim / 2, pairs});
        PaddedTensor cos({tokens, pairs}, 0), sin({tokens, pairs}, 0);
        cos.fill_normal(random);
        sin.fill_normal(random);
        const Tensor q_norm = random_weight(head_dim), k_norm = random_weight(head_dim);
        const std::vector<int32_t> pages_a = {3, 0}, pages_b = {5};
        // The second ends in the middle of its page, which it has begun before.
        const std::vector<SequenceRows> sequences = {{0, 9, 2, pages_a}, {9, 2, 5, pages_b}};

        PaddedTensor q2({tokens, heads, head_dim}, 0), k2({tokens, kv_heads, head_dim}, 0);
        PaddedTensor v2({tokens, kv_heads, head_dim}, 0);
        q2.copy_from(q);
        k2.copy_from(k);
        v2.copy_from(values_from_keys ? k : v);
        Cache expected(dtype, kv_heads, head_dim, device);
        Cache actual(dtype, kv_heads, head_dim, device);
        expected.static_scales = actual.static_scales = static_scales;
        rms_norm(stream, q2, q_norm, 1e-6f, q2);
        rope(stream, q2, cos, sin, distance);
        if (normed_values) rms_norm(stream, v2, TensorView(), 1e-6f, v2);
        rms_norm(stream, k2, k_norm, 1e-6f, k2);
        rope(stream, k2, cos, sin, distance);
        write_kv(stream, k2, v2, sequences, expected.view());

        const HeadOptions options{.q_norm = q_norm,
                                  .k_norm = k_norm,
                                  .normed_values = normed_values,
                                  .cos = cos,
                                  .sin = sin,
                                  .pair_distance = distance};
        PaddedTensor q3({tokens, heads, head_dim}, 0);
        q3.copy_from(q);
        prepare_queries(stream, q3, options);
        EXPECT_EQ(q3.bits(), q2.bits()) << head_dim;
        prepare_heads(stream, workspace, q, k, values_from_keys ? k : v, options, sequences,
                      actual.view());
        EXPECT_EQ(q.bits(), q2.bits()) << head_dim;
        EXPECT_TRUE(q.gaps_untouched());
        EXPECT_EQ(actual.bytes(), expected.bytes()) << head_dim << " " << dtype_name(dtype);
      }
    }
  }
}

BRAID_INSTANTIATE_PER_TARGET(AttentionHeadsTest);

}  // namespace
}  // namespace braid

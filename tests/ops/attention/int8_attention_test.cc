#include "ops/attention/attention_bed.h"

namespace braid {
namespace {

class Int8AttentionTest : public AttentionOpTest {
 protected:
  void check_rows(int64_t head_dim, const KvScales& static_scales) {
    SCOPED_TRACE(fmt::format("head_dim {}, static scales {} {}", head_dim, static_scales.key,
                             static_scales.value));
    const int64_t kv_heads = 2, page_tokens = 8, count = 8;
    const Shape shape{1, kv_heads, page_tokens, head_dim};
    Tensor keys(DType::kI8, shape, device), values(DType::kI8, shape, device);
    Tensor key_scales(DType::kF32, {1, kv_heads, page_tokens}, device);
    Tensor value_scales(DType::kF32, key_scales.shape(), device);
    PaddedTensor k({count, kv_heads, head_dim}, 3), v({count, kv_heads, head_dim}, 1);
    k.fill_normal(random);
    v.fill_normal(random, 1e-3f);
    // Rows of nothing, of next to nothing, of the largest numbers, of halves between two codes
    // (and, with a scale of 1, of numbers beyond the last one), and rows with elements that are not
    // finite.
    std::fill_n(k.row(1), k.row_elements(), 0.0f);
    std::fill_n(k.row(2), k.row_elements(), 0x1p-101f);
    std::fill_n(k.row(3), k.row_elements(), std::numeric_limits<float>::max());
    for (int64_t d = 0; d < k.row_elements(); ++d) {
      k.row(4)[d] = static_cast<float>(d % 255) - 127 + 0.5f * static_cast<float>(d % 2);
      if (static_scales.key == 1) k.row(7)[d] = 126.5f + 0.25f * static_cast<float>(d % 8);
      if (d % 3 == 0) k.row(7)[d] *= -1;
    }
    k.row(4)[0] = k.row(4)[head_dim] = -127;
    k.row(5)[random.integer(0, head_dim - 1)] = kNan;
    k.row(6)[random.integer(0, head_dim - 1)] = -std::numeric_limits<float>::infinity();
    v.row(1)[0] = std::numeric_limits<float>::max();
    v.row(2)[head_dim - 1] = -std::numeric_limits<float>::max();
    v.row(3)[random.integer(0, head_dim - 1)] = kNan;
    const std::vector<int32_t> pages = {0};
    const SequenceRows rows{.num_rows = count, .pages = pages};
    write_kv(stream, k, v, {&rows, 1}, {keys, values, key_scales, value_scales, static_scales});
    const auto check = [&](PaddedTensor& from, const Tensor& codes, const Tensor& scales,
                           float static_scale) {
      for (int64_t row = 0; row < count; ++row) {
        for (int64_t head = 0; head < kv_heads; ++head) {
          const float* x = from.row(row) + head * head_dim;
          const reference::Int8Row expected = int8_row(x, head_dim, static_scale);
          const int64_t slot = head * page_tokens + row;
          const float scale = scales.data<float>()[slot];
          EXPECT_EQ(std::isnan(scale), std::isnan(expected.scale)) << "row " << row;
          if (!std::isnan(scale)) EXPECT_EQ(scale, expected.scale) << "row " << row;
          for (int64_t d = 0; d < head_dim; ++d) {
            const int8_t code = codes.data<int8_t>()[slot * head_dim + d];
            ASSERT_EQ(code, expected.codes[d]) << "row " << row << ", element " << d;
            if (std::isnan(scale)) continue;
            ASSERT_LE(std::abs(double{x[d]} - double{scale} * code),
                      int8_row_error(x, head_dim, static_scale))
                << "row " << row << ", element " << d;
          }
        }
      }
    };
    check(k, keys, key_scales, static_scales.key);
    check(v, values, value_scales, static_scales.value);
  }
};

// Codes and scales as defined, to the bit: of their own, or static.
TEST_P(Int8AttentionTest, RowsAreRoundedAsDefined) {
  const KvScales all_scales[] = {
      {}, {1, random.uniform(1e-5f, 3e-5f)}, {kLargestKvScale, kSmallestKvScale}};
  for (const KvScales& static_scales : all_scales) {
    for (const int64_t head_dim : {8, 16, 24, 40, 64, 200, 256}) {
      check_rows(head_dim, static_scales);
    }
  }
}

// The distance from attention over the numbers as given is within the bound of paged_kv.h, with
// scales of each row and with static ones that clamp some numbers.
TEST_P(Int8AttentionTest, ErrorIsWithinItsBound) {
  for (int round = 0; round < 10; ++round) {
    CacheSetup setup = random_setup();
    setup.dtype = DType::kI8;
    setup.static_scales = round % 2 == 0 ? KvScales{} : random_scales(setup.head_dim);
    SCOPED_TRACE(describe(setup));
    const int64_t length = random.integer(1, 150);
    const Text text = random_text(random, setup, length);
    Bed bed(setup, 20, random);
    bed.add(text);
    bed.step(stream, workspace, {{0, length}});
    for (const int64_t position : {int64_t{0}, length / 2, length - 1}) {
      for (int64_t head = 0; head < setup.heads(); ++head) {
        const int64_t at = (position * setup.heads() + head) * setup.head_dim;
        const float* q = text.queries.data() + at;
        const int64_t kv_head = head / setup.group;
        const reference::AttentionRow exact =
            reference::attention_row(q, text.written, position, kv_head, setup.scale, setup.window);
        double query_size = 0;
        for (int64_t d = 0; d < setup.head_dim; ++d) query_size += std::abs(double{q[d]});
        double score_error = 0, value_error = 0;
        for (int64_t j = 0; j < exact.num_keys; ++j) {
          const int64_t key = position + 1 - exact.num_keys + j;
          score_error =
              std::max(score_error, setup.scale * query_size *
                                        int8_row_error(text.written.key(key, kv_head),
                                                       setup.head_dim, setup.static_scales.key));
          value_error +=
              exact.weights[j] * int8_row_error(text.written.value(key, kv_head), setup.head_dim,
                                                setup.static_scales.value);
        }
        // Tensor cores: see expect_reference.
        double weight_error = 0;
        if (on_tensor_cores(setup)) {
          score_error += 6 * kBFloat16Roundoff * exact.score_norm;
          weight_error = 2 * kBFloat16Roundoff;
        }
        const double growth = std::exp(2 * score_error) * (1 + weight_error);
        // And a part in 10^4 for float32, see expect_reference.
        for (int64_t d = 0; d < setup.head_dim; ++d) {
          ASSERT_NEAR(bed.out(0)[at + d], exact.out[d],
                      ((growth - 1) + 1e-4) * exact.magnitude[d] + growth * value_error)
              << "position " << position << ", head " << head << ", element " << d;
        }
      }
    }
  }
}

BRAID_INSTANTIATE_PER_TARGET(Int8AttentionTest);

}  // namespace
}  // namespace braid

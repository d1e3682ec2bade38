#pragma once

// What the tests of attention() share: texts of random numbers, a store that sequences are computed
// in step by step, and how far results may be from the reference.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/attention/attention.h"
#include "ops/attention/attention_plan.h"
#include "ops/op_test.h"
#include "reference/attention.h"
#include "reference/kv_int8.h"

namespace braid {

struct CacheSetup {
  DType dtype = DType::kF32;
  int64_t kv_heads = 1;
  int64_t group = 1;
  int64_t head_dim = 16;
  int64_t page_tokens = 32;
  int64_t window = 0;
  float scale = 1;
  KvScales static_scales = {};  // of int8
  bool aligned = false;         // rows of queries and results, to 16 bytes

  int64_t heads() const { return kv_heads * group; }
};

inline std::string describe(const CacheSetup& s) {
  return fmt::format(
      "{}, {} KV heads × {}, head_dim {}, page {}, window {}, scale {}, steps {} {}{}",
      dtype_name(s.dtype), s.kv_heads, s.group, s.head_dim, s.page_tokens, s.window, s.scale,
      s.static_scales.key, s.static_scales.value, s.aligned ? ", aligned" : "");
}

// What one sequence is, apart from how it is computed: its queries, keys and values by position.
struct Text {
  std::vector<float> queries;  // [positions, heads, head_dim]
  reference::DenseKv written;  // as given to the store
  reference::DenseKv kv;       // as stored: rounded if the store is bfloat16 or int8

  int64_t length(const CacheSetup& setup) const {
    return static_cast<int64_t>(kv.keys.size()) / (setup.kv_heads * setup.head_dim);
  }
};

// static_scale 0: the row's own.
inline reference::Int8Row int8_row(const float* x, int64_t n, float static_scale) {
  return static_scale > 0 ? reference::quantise_int8(x, n, static_scale)
                          : reference::quantise_int8(x, n);
}
inline double int8_row_error(const float* x, int64_t n, float static_scale) {
  return static_scale > 0 ? reference::int8_error(x, n, static_scale) : reference::int8_error(x, n);
}

// What a store makes of heads of head_dim elements.
inline void round_as(const CacheSetup& setup, float static_scale, std::vector<float>& values) {
  if (setup.dtype == DType::kBF16) {
    for (float& x : values) x = to_float(to_bfloat16(x));
  } else if (setup.dtype == DType::kI8) {
    for (size_t at = 0; at < values.size(); at += setup.head_dim) {
      const reference::Int8Row row = int8_row(&values[at], setup.head_dim, static_scale);
      for (int64_t d = 0; d < setup.head_dim; ++d) values[at + d] = row.value(d);
    }
  }
}

inline Text random_text(Random& random, const CacheSetup& setup, int64_t length) {
  Text text;
  const float deviation = 1 / std::sqrt(std::sqrt(static_cast<float>(setup.head_dim)));
  text.queries.resize(length * setup.heads() * setup.head_dim);
  for (float& x : text.queries) x = random.normal(2 * deviation);
  text.written = {.kv_heads = setup.kv_heads, .head_dim = setup.head_dim};
  for (std::vector<float>* values : {&text.written.keys, &text.written.values}) {
    values->resize(length * setup.kv_heads * setup.head_dim);
    const float size = values == &text.written.keys ? deviation : 1;
    for (float& x : *values) x = random.normal(size);
  }
  text.kv = text.written;
  round_as(setup, setup.static_scales.key, text.kv.keys);
  round_as(setup, setup.static_scales.value, text.kv.values);
  return text;
}

// A page store full of NaN, and sequences that are given pages of it and computed step by step.
class Bed {
 public:
  Bed(const CacheSetup& setup, int64_t num_pages, Random& random)
      : setup_(setup),
        keys_(setup.dtype, {num_pages, setup.kv_heads, setup.page_tokens, setup.head_dim},
              op_test_device),
        values_(setup.dtype, keys_.shape(), op_test_device),
        free_(num_pages) {
    if (setup.dtype == DType::kI8) {
      const Shape scales{num_pages, setup.kv_heads, setup.page_tokens};
      key_scales_ = Tensor(DType::kF32, scales, op_test_device);
      value_scales_ = Tensor(DType::kF32, scales, op_test_device);
      poison(key_scales_);
      poison(value_scales_);
    } else {
      poison(keys_);
      poison(values_);
    }
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), random.engine());
  }

  PagedKv cache() const {
    return {keys_.view(), values_.view(), key_scales_.view(), value_scales_.view(),
            setup_.static_scales};
  }

  // Returns the sequence's index. num_pages 0: enough for its length.
  int add(const Text& text, int64_t num_pages = 0) {
    if (num_pages == 0) num_pages = (text.length(setup_) - 1) / setup_.page_tokens + 1;
    BRAID_CHECK(static_cast<int64_t>(free_.size()) >= num_pages);
    Sequence sequence{.text = &text};
    sequence.pages.assign(free_.end() - num_pages, free_.end());
    free_.resize(free_.size() - num_pages);
    sequence.out.assign(text.queries.size(), kNan);
    sequences_.push_back(std::move(sequence));
    return static_cast<int>(sequences_.size()) - 1;
  }

  int64_t done(int sequence) const { return sequences_[sequence].done; }
  const std::vector<float>& out(int sequence) const { return sequences_[sequence].out; }

  struct Part {
    int sequence;
    int64_t num_tokens;
  };
  // One step: the next tokens of some sequences as one flat batch. Without `attends` their keys and
  // values are written and nothing else: out() stays NaN.
  void step(Stream& stream, Workspace& workspace, const std::vector<Part>& parts,
            bool attends = true) {
    int64_t tokens = 0;
    for (const Part& part : parts) tokens += part.num_tokens;
    PaddedTensor q({tokens, setup_.heads(), setup_.head_dim}, setup_.aligned ? 4 : 5);
    PaddedTensor out({tokens, setup_.heads(), setup_.head_dim}, setup_.aligned ? 8 : 3);
    PaddedTensor k({tokens, setup_.kv_heads, setup_.head_dim}, 2);
    PaddedTensor v({tokens, setup_.kv_heads, setup_.head_dim}, 0);
    std::vector<SequenceRows> rows;
    int64_t row = 0;
    for (const Part& part : parts) {
      const Sequence& sequence = sequences_[part.sequence];
      rows.push_back({.first_row = row,
                      .num_rows = part.num_tokens,
                      .first_position = sequence.done,
                      .pages = sequence.pages});
      for (int64_t i = 0; i < part.num_tokens; ++i, ++row) {
        const int64_t position = sequence.done + i;
        const Text& text = *sequence.text;
        std::copy_n(text.queries.data() + position * q.row_elements(), q.row_elements(),
                    q.row(row));
        std::copy_n(text.written.key(position, 0), k.row_elements(), k.row(row));
        std::copy_n(text.written.value(position, 0), v.row_elements(), v.row(row));
      }
    }
    write_kv(stream, k, v, rows, cache());
    if (attends) {
      attention(stream, workspace, q, cache(), rows,
                {.scale = setup_.scale, .window = setup_.window}, out);
    }
    EXPECT_TRUE(out.gaps_untouched());
    EXPECT_EQ(workspace.used_bytes(), 0u);
    row = 0;
    for (const Part& part : parts) {
      Sequence& sequence = sequences_[part.sequence];
      for (int64_t i = 0; i < part.num_tokens; ++i, ++row) {
        std::copy_n(out.row(row), out.row_elements(),
                    sequence.out.data() + (sequence.done + i) * out.row_elements());
      }
      sequence.done += part.num_tokens;
    }
  }

 private:
  struct Sequence {
    const Text* text;
    std::vector<int32_t> pages;
    std::vector<float> out;
    int64_t done = 0;
  };

  static void poison(const Tensor& tensor) {
    if (tensor.dtype() == DType::kF32) {
      for (float& x : tensor.view().span<float>()) x = kNan;
    } else {
      for (BFloat16& x : tensor.view().span<BFloat16>()) x = {0x7fc0};
    }
  }

  CacheSetup setup_;
  Tensor keys_;
  Tensor values_;
  Tensor key_scales_;  // int8 only
  Tensor value_scales_;
  std::vector<int32_t> free_;
  std::vector<Sequence> sequences_;
};

inline std::vector<uint32_t> bits_of(const std::vector<float>& values, int64_t begin, int64_t end) {
  std::vector<uint32_t> bits;
  for (int64_t i = begin; i < end; ++i) bits.push_back(std::bit_cast<uint32_t>(values[i]));
  return bits;
}
inline std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  return bits_of(values, 0, static_cast<int64_t>(values.size()));
}

// Half the distance from 1 to the next bfloat16.
inline constexpr double kBFloat16Roundoff = 0x1p-8;

class AttentionOpTest : public OpTest {
 protected:
  DType random_dtype() { return random.pick({DType::kF32, DType::kBF16, DType::kI8}); }

  // For random_text(): what is beyond 2 to 5 deviations is clamped.
  KvScales random_scales(int64_t head_dim) {
    const float deviation = 1 / std::sqrt(std::sqrt(static_cast<float>(head_dim)));
    return {random.uniform(2, 5) * deviation / 127, random.uniform(2, 5) / 127};
  }

  // CUDA computes these on its tensor cores: queries and weights are rounded to bfloat16, and which
  // products are summed in which order depends on how many rows a step has of the sequence.
  bool on_tensor_cores(const CacheSetup& setup) const {
    return on_cuda() && setup.dtype != DType::kF32 &&
           (setup.head_dim == 64 || setup.head_dim == 128 || setup.head_dim == 256 ||
            setup.head_dim == 512);
  }

  // Rounding errors: a score is a sum of head_dim products (each addition may round); the relative
  // error of its exponential is its own error, that of the largest score, one rounding of their
  // difference, and 4 units; the weighted sum and the sum of weights see one rounding per key of a
  // stretch, and a few per stretch. On tensor cores, queries and weights are rounded to bfloat16:
  // each product of a score has an error of its own, so that the score has one of their norm (times
  // 6, for all of a test's scores); weights are as far off as their rounding. With int8, scaling a
  // score and a probability and the reference's product of code and scale round twice more.
  void expect_reference(const CacheSetup& setup, const Text& text, const std::vector<float>& out,
                        int64_t begin, int64_t end) {
    for (int64_t position = begin; position < end; ++position) {
      for (int64_t head = 0; head < setup.heads(); ++head) {
        const int64_t at = (position * setup.heads() + head) * setup.head_dim;
        const reference::AttentionRow expected =
            reference::attention_row(text.queries.data() + at, text.kv, position,
                                     head / setup.group, setup.scale, setup.window);
        const int more = setup.dtype == DType::kI8 ? 2 : 0;
        double score_error = static_cast<double>(setup.head_dim + 2 + more) * kUnitRoundoff *
                             expected.score_magnitude;
        double weight_error = 0;
        if (on_tensor_cores(setup)) {
          score_error += 6 * kBFloat16Roundoff * expected.score_norm;
          weight_error = kBFloat16Roundoff;
        }
        const double keys = static_cast<double>(std::min(expected.num_keys, kSplitKeys)) +
                            4.0 * static_cast<double>(expected.num_keys / kSplitKeys + 1) + more;
        const double relative = 2 * (2 * score_error + weight_error +
                                     (2 * expected.score_spread + 4 + keys) * kUnitRoundoff);
        for (int64_t d = 0; d < setup.head_dim; ++d) {
          ASSERT_NEAR(out[at + d], expected.out[d], relative * expected.magnitude[d])
              << describe(setup) << ", position " << position << ", head " << head << ", element "
              << d;
        }
      }
    }
  }

  void compute(const CacheSetup& setup, Bed& bed, int sequence, const Text& text,
               const std::vector<int64_t>& chunks) {
    size_t i = 0;
    while (bed.done(sequence) < text.length(setup)) {
      const int64_t left = text.length(setup) - bed.done(sequence);
      bed.step(stream, workspace, {{sequence, std::min(left, chunks[i++ % chunks.size()])}});
    }
  }

  CacheSetup random_setup() {
    CacheSetup setup;
    setup.dtype = random_dtype();
    setup.kv_heads = random.integer(1, 3);
    setup.group = random.pick<int64_t>({1, 1, 2, 3, 4, 5, 7, 8, 16, 40});
    setup.head_dim = random.pick<int64_t>({8, 16, 24, 32, 40, 64, 128, 256});
    setup.page_tokens = random.pick<int64_t>({8, 16, 32, 64});
    setup.window = random.pick<int64_t>(
        {0, 0, 0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129});
    if (small_tests()) {
      setup.kv_heads = std::min<int64_t>(setup.kv_heads, 2);
      setup.group = std::min<int64_t>(setup.group, 8);
    }
    setup.scale = random.pick({1.0f, 0.0625f, 0.3f});
    setup.aligned = random.integer(0, 1) == 1;
    if (setup.dtype == DType::kI8 && random.integer(0, 1) == 1) {
      setup.static_scales = random_scales(setup.head_dim);
    }
    return setup;
  }
};

}  // namespace braid

#include "ops/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "ops/attention/attention_plan.h"
#include "ops/op_test.h"
#include "reference/attention.h"
#include "reference/kv_int8.h"

namespace braid {
namespace {

struct CacheSetup {
  DType dtype = DType::kF32;
  int64_t kv_heads = 1;
  int64_t group = 1;
  int64_t head_dim = 16;
  int64_t page_tokens = 32;
  int64_t window = 0;
  float scale = 1;

  int64_t heads() const { return kv_heads * group; }
};

std::string describe(const CacheSetup& s) {
  return fmt::format("{}, {} KV heads × {}, head_dim {}, page {}, window {}, scale {}",
                     dtype_name(s.dtype), s.kv_heads, s.group, s.head_dim, s.page_tokens, s.window,
                     s.scale);
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

// What a store makes of heads of head_dim elements.
void round_as(const CacheSetup& setup, std::vector<float>& values) {
  if (setup.dtype == DType::kBF16) {
    for (float& x : values) x = to_float(to_bfloat16(x));
  } else if (setup.dtype == DType::kI8) {
    for (size_t at = 0; at < values.size(); at += setup.head_dim) {
      const reference::Int8Row row = reference::quantise_int8(&values[at], setup.head_dim);
      for (int64_t d = 0; d < setup.head_dim; ++d) values[at + d] = row.value(d);
    }
  }
}

Text random_text(Random& random, const CacheSetup& setup, int64_t length) {
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
  for (std::vector<float>* values : {&text.kv.keys, &text.kv.values}) round_as(setup, *values);
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
    return {keys_.view(), values_.view(), key_scales_.view(), value_scales_.view()};
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
  // One step: the next tokens of some sequences as one flat batch.
  void step(Stream& stream, Workspace& workspace, const std::vector<Part>& parts) {
    int64_t tokens = 0;
    for (const Part& part : parts) tokens += part.num_tokens;
    PaddedTensor q({tokens, setup_.heads(), setup_.head_dim}, 5);
    PaddedTensor out({tokens, setup_.heads(), setup_.head_dim}, 3);
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
    attention(stream, workspace, q, cache(), rows, {.scale = setup_.scale, .window = setup_.window},
              out);
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

std::vector<uint32_t> bits_of(const std::vector<float>& values, int64_t begin, int64_t end) {
  std::vector<uint32_t> bits;
  for (int64_t i = begin; i < end; ++i) bits.push_back(std::bit_cast<uint32_t>(values[i]));
  return bits;
}
std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  return bits_of(values, 0, static_cast<int64_t>(values.size()));
}

// Half the distance from 1 to the next bfloat16.
constexpr double kBFloat16Roundoff = 0x1p-8;

class AttentionTest : public OpTest {
 protected:
  DType random_dtype() { return random.pick({DType::kF32, DType::kBF16, DType::kI8}); }

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
    setup.scale = random.pick({1.0f, 0.0625f, 0.3f});
    return setup;
  }
};

TEST_P(AttentionTest, MatchesReferenceOverMixedBatches) {
  for (int round = 0; round < (small_tests() ? 3 : 25); ++round) {
    const CacheSetup setup = random_setup();
    SCOPED_TRACE(describe(setup));
    const int64_t page = setup.page_tokens;
    std::vector<Text> texts;
    for (const int64_t length : {int64_t{1}, int64_t{2}, page - 1, page, page + 1,
                                 int64_t{kTileKeys - 1}, int64_t{kTileKeys}, int64_t{kTileKeys + 1},
                                 random.integer(127, 129), random.integer(1, 150)}) {
      texts.push_back(random_text(random, setup, length));
    }
    Bed bed(setup, 200, random);
    for (const Text& text : texts) bed.add(text);
    for (;;) {
      std::vector<Bed::Part> parts;
      for (size_t s = 0; s < texts.size(); ++s) {
        const int64_t left = texts[s].length(setup) - bed.done(static_cast<int>(s));
        if (left == 0) continue;
        const int64_t tokens = random.pick<int64_t>({0, 1, 1, 5, 32, 100});
        parts.push_back({static_cast<int>(s), std::min(left, tokens)});
      }
      if (parts.empty()) break;
      std::shuffle(parts.begin(), parts.end(), random.engine());
      bed.step(stream, workspace, parts);
    }
    for (size_t s = 0; s < texts.size(); ++s) {
      expect_reference(setup, texts[s], bed.out(static_cast<int>(s)), 0, texts[s].length(setup));
    }
  }
}

TEST_P(AttentionTest, WideHeads) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    const CacheSetup setup{
        .dtype = dtype, .kv_heads = 2, .group = 8, .head_dim = 512, .window = 40};
    const Text text = random_text(random, setup, 70);
    Bed bed(setup, 10, random);
    bed.add(text);
    compute(setup, bed, 0, text, {67, 1});
    expect_reference(setup, text, bed.out(0), 0, 70);
  }
}

// Lengths around the stretches that are merged.
TEST_P(AttentionTest, LongSequences) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    for (const int64_t window : {int64_t{0}, kSplitKeys, kSplitKeys + 1, int64_t{1500}}) {
      if (small_tests() && window != 1500) continue;
      const CacheSetup setup{.dtype = dtype,
                             .kv_heads = 1,
                             .group = random.integer(1, 3),
                             .head_dim = 16,
                             .page_tokens = 64,
                             .window = window};
      const int64_t length = 2 * kSplitKeys + 40;
      const Text text = random_text(random, setup, length);
      Bed bed(setup, 50, random);
      bed.add(text);
      compute(setup, bed, 0, text, {kSplitKeys - 3, 1, 1, 1, 1, 1, kSplitKeys - 5, 1, 1, 1});
      for (const int64_t edge : {window, kSplitKeys, 2 * kSplitKeys}) {
        expect_reference(setup, text, bed.out(0), std::max<int64_t>(0, edge - 3),
                         std::min(length, edge + 3));
      }
      expect_reference(setup, text, bed.out(0), length - 1, length);
    }
  }
}

TEST_P(AttentionTest, ChunksThreadsAndMatesDoNotChangeABit) {
  for (int round = 0; round < (small_tests() ? 1 : 6); ++round) {
    CacheSetup setup = random_setup();
    if (on_tensor_cores(setup)) setup.dtype = DType::kF32;
    SCOPED_TRACE(describe(setup));
    const int64_t length = random.integer(66, 140);
    const Text text = random_text(random, setup, length);
    Bed whole(setup, 20, random);
    whole.add(text);
    whole.step(stream, workspace, {{0, length}});
    const std::vector<uint32_t> expected = bits_of(whole.out(0));

    const std::vector<std::vector<int64_t>> series = {
        {1}, {7}, {random.integer(1, 40), random.integer(1, 40)}, {31, 1, 33}};
    for (const std::vector<int64_t>& chunks : series) {
      Bed bed(setup, 20, random);
      bed.add(text);
      compute(setup, bed, 0, text, chunks);
      ASSERT_EQ(bits_of(bed.out(0)), expected) << "chunks of " << chunks[0];
    }
    for (const int threads : {1, 2, 3}) {
      OtherStream other(threads);
      Bed bed(setup, 20, random);
      bed.add(text);
      bed.step(other, workspace, {{0, length - 1}});
      bed.step(other, workspace, {{0, 1}});
      ASSERT_EQ(bits_of(bed.out(0)), expected) << threads << " threads";
    }
    // Mates with nothing but NaN, before and behind.
    Text mate = random_text(random, setup, 90);
    for (std::vector<float>* values : {&mate.queries, &mate.written.keys, &mate.written.values}) {
      std::fill(values->begin(), values->end(), kNan);
    }
    Bed bed(setup, 60, random);
    const int first = bed.add(mate), own = bed.add(text), last = bed.add(mate);
    while (bed.done(own) < length) {
      const int64_t tokens = std::min(length - bed.done(own), random.integer(1, 50));
      std::vector<Bed::Part> parts = {{own, tokens}};
      for (const int other : {first, last}) {
        const int64_t left = 90 - bed.done(other);
        parts.push_back({other, std::min(left, random.integer(0, 20))});
      }
      std::shuffle(parts.begin(), parts.end(), random.engine());
      bed.step(stream, workspace, parts);
    }
    ASSERT_EQ(bits_of(bed.out(own)), expected) << "in a batch";
  }
}

// One long sequence keeps several threads busy by splitting its keys; the result is that of one
// thread.
TEST_P(AttentionTest, SplittingKeysDoesNotChangeABit) {
  for (const int64_t window : {int64_t{0}, int64_t{2500}}) {
    const CacheSetup setup{.dtype = random_dtype(),
                           .kv_heads = 1,
                           .group = 4,
                           .head_dim = 16,
                           .page_tokens = 64,
                           .window = window};
    const int64_t length = (small_tests() ? 1 : 4) * kSplitKeys + random.integer(1, 200);
    const Text text = random_text(random, setup, length);
    std::vector<std::vector<uint32_t>> results;
    for (const int threads : {1, 2, 3, 8}) {
      if (small_tests() && threads > 1) break;
      OtherStream other(threads);
      Bed bed(setup, 100, random);
      bed.add(text);
      const int64_t last = random.integer(1, 5);
      bed.step(other, workspace, {{0, length - last}});
      bed.step(other, workspace, {{0, last}});
      results.push_back(bits_of(bed.out(0)));
      EXPECT_EQ(results.back(), results.front()) << threads << " threads";
      // A workspace with room for the threads' scratch, but for few partial results: little or no
      // splitting, the same result.
      const int64_t scratch_floats = kTileQueries * (kTileKeys + 3 * 16) + packed_floats(16);
      Workspace small((threads * sizeof(float) * scratch_floats) + (size_t{24} << 10), device);
      Bed again(setup, 100, random);
      again.add(text);
      again.step(other, small, {{0, length - 1}});
      again.step(other, small, {{0, 1}});
      EXPECT_EQ(bits_of(again.out(0)), results.front()) << threads << " threads, little room";
    }
  }
}

// A query sees itself and the window − 1 keys before it, and nothing else, to the bit.
TEST_P(AttentionTest, WindowEndsExactly) {
  for (const int64_t window : {1, 2, 8, 16, 31, 32, 33, 63, 64, 65, 100}) {
    if (small_tests() && window != 33) continue;
    CacheSetup setup = random_setup();
    setup.window = window;
    SCOPED_TRACE(describe(setup));
    const int64_t length = window + random.integer(1, 40);
    const int64_t position = random.integer(window, length - 1);
    Text text = random_text(random, setup, length);
    const auto run = [&](int64_t chunk) {
      Bed bed(setup, 40, random);
      bed.add(text);
      compute(setup, bed, 0, text, {chunk});
      const int64_t row = setup.heads() * setup.head_dim;
      return bits_of(bed.out(0), position * row, (position + 1) * row);
    };
    const int64_t row = setup.kv_heads * setup.head_dim;
    const auto disturb = [&](int64_t key, float value) {
      std::fill_n(text.written.keys.begin() + key * row, row, value);
      std::fill_n(text.written.values.begin() + key * row, row, value);
    };
    const Text original = text;
    for (const int64_t chunk : {int64_t{1}, int64_t{37}, length}) {
      if (small_tests() && chunk == 1) continue;
      const std::vector<uint32_t> before = run(chunk);
      for (const float value : {3.0f, kNan}) {
        // Queries that tensor cores compute together lose a key that not all of them see by a
        // weight of zero, which does not stop what is not a number.
        if (std::isnan(value) && on_tensor_cores(setup)) continue;
        disturb(position - window, value);
        EXPECT_EQ(run(chunk), before) << "key at distance " << window << " is seen";
        text = original;
        if (position + 1 < length) {
          disturb(position + 1, value);
          EXPECT_EQ(run(chunk), before) << "the next key is seen";
          text = original;
        }
        disturb(position - window + 1, value);
        EXPECT_NE(run(chunk), before) << "key at distance " << window - 1 << " is not seen";
        text = original;
      }
    }
  }
}

// Page lists shorter than the text: rings that have gone round several times.
TEST_P(AttentionTest, Rings) {
  for (int round = 0; round < (small_tests() ? 2 : 10); ++round) {
    CacheSetup setup = random_setup();
    setup.window = random.integer(1, 70);
    SCOPED_TRACE(describe(setup));
    const int64_t step = random.integer(1, 40);
    const int64_t pages = (setup.window - 1 + step - 1) / setup.page_tokens + 1;
    const Text text = random_text(random, setup, 300);
    Bed bed(setup, pages, random);
    bed.add(text, pages);
    compute(setup, bed, 0, text, {step, random.integer(1, step)});
    expect_reference(setup, text, bed.out(0), 0, 300);
  }
}

// Codes and scales as defined, to the bit.
TEST_P(AttentionTest, Int8RowsAreRoundedAsDefined) {
  for (const int64_t head_dim : {8, 16, 24, 40, 64, 200, 256}) {
    const CacheSetup setup{
        .dtype = DType::kI8, .kv_heads = 2, .head_dim = head_dim, .page_tokens = 8};
    const int64_t count = 8;
    const Shape shape{1, setup.kv_heads, setup.page_tokens, head_dim};
    Tensor keys(DType::kI8, shape, device), values(DType::kI8, shape, device);
    Tensor key_scales(DType::kF32, {1, setup.kv_heads, setup.page_tokens}, device);
    Tensor value_scales(DType::kF32, key_scales.shape(), device);
    PaddedTensor k({count, setup.kv_heads, head_dim}, 3), v({count, setup.kv_heads, head_dim}, 1);
    k.fill_normal(random);
    v.fill_normal(random, 1e-3f);
    // Rows of nothing, of next to nothing, of the largest numbers, of halves between two codes, and
    // rows with elements that are not finite.
    std::fill_n(k.row(1), k.row_elements(), 0.0f);
    std::fill_n(k.row(2), k.row_elements(), 0x1p-101f);
    std::fill_n(k.row(3), k.row_elements(), std::numeric_limits<float>::max());
    for (int64_t d = 0; d < k.row_elements(); ++d) {
      k.row(4)[d] = static_cast<float>(d % 255) - 127 + 0.5f * static_cast<float>(d % 2);
    }
    k.row(4)[0] = k.row(4)[head_dim] = -127;
    k.row(5)[random.integer(0, head_dim - 1)] = kNan;
    k.row(6)[random.integer(0, head_dim - 1)] = -std::numeric_limits<float>::infinity();
    const std::vector<int32_t> pages = {0};
    const SequenceRows rows{.num_rows = count, .pages = pages};
    write_kv(stream, k, v, {&rows, 1}, {keys, values, key_scales, value_scales});
    const auto check = [&](PaddedTensor& from, const Tensor& codes, const Tensor& scales) {
      for (int64_t row = 0; row < count; ++row) {
        for (int64_t head = 0; head < setup.kv_heads; ++head) {
          const float* x = from.row(row) + head * head_dim;
          const reference::Int8Row expected = reference::quantise_int8(x, head_dim);
          const int64_t slot = head * setup.page_tokens + row;
          const float scale = scales.data<float>()[slot];
          EXPECT_EQ(std::isnan(scale), std::isnan(expected.scale)) << "row " << row;
          if (!std::isnan(scale)) EXPECT_EQ(scale, expected.scale) << "row " << row;
          for (int64_t d = 0; d < head_dim; ++d) {
            const int8_t code = codes.data<int8_t>()[slot * head_dim + d];
            ASSERT_EQ(code, expected.codes[d]) << "row " << row << ", element " << d;
            if (std::isnan(scale)) continue;
            ASSERT_LE(std::abs(double{x[d]} - double{scale} * code),
                      reference::int8_error(x, head_dim))
                << "row " << row << ", element " << d;
          }
        }
      }
    };
    check(k, keys, key_scales);
    check(v, values, value_scales);
  }
}

// The distance from attention over the numbers as given is within the bound of paged_kv.h.
TEST_P(AttentionTest, Int8ErrorIsWithinItsBound) {
  for (int round = 0; round < 10; ++round) {
    CacheSetup setup = random_setup();
    setup.dtype = DType::kI8;
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
              std::max(score_error,
                       setup.scale * query_size *
                           reference::int8_error(text.written.key(key, kv_head), setup.head_dim));
          value_error += exact.weights[j] *
                         reference::int8_error(text.written.value(key, kv_head), setup.head_dim);
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

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  CacheSetup setup{.group = 2, .head_dim = 32};
  Text text = random_text(random, setup, 50);
  for (float& x : text.written.keys) x *= 3e3f;
  Bed bed(setup, 4, random);
  bed.add(text);
  bed.step(stream, workspace, {{0, 50}});
  for (const float x : bed.out(0)) ASSERT_TRUE(std::isfinite(x));
}

TEST_P(AttentionTest, NothingToDo) {
  CacheSetup setup;
  Bed bed(setup, 1, random);
  bed.step(stream, workspace, {});
}

TEST_P(AttentionTest, RejectsMisuse) {
  if (on_cuda()) GTEST_SKIP() << "the checks are in front of the choice of a device";
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const CacheSetup setup{.head_dim = 16, .page_tokens = 8};
  Bed bed(setup, 2, random);
  Tensor q(DType::kF32, {20, 1, 16}), out(DType::kF32, {20, 1, 16});
  const std::vector<int32_t> pages = {0, 1};
  const std::vector<int32_t> bad_pages = {0, 2};
  std::vector<SequenceRows> rows = {{.num_rows = 17, .pages = pages}};
  EXPECT_DEATH(attention(stream, workspace, q, bed.cache(), rows, {}, out), "17 are needed");
  EXPECT_DEATH(write_kv(stream, q, q, rows, bed.cache()), "17 are needed");
  rows[0] = {.num_rows = 3, .pages = bad_pages};
  EXPECT_DEATH(attention(stream, workspace, q, bed.cache(), rows, {}, out), "page 2 of 2");
  rows[0] = {.first_row = 18, .num_rows = 3, .pages = pages};
  EXPECT_DEATH(attention(stream, workspace, q, bed.cache(), rows, {}, out), "of 20");
}

// Heads of the sizes that CUDA has tensor-core kernels for, in steps of few and of many rows.
TEST_P(AttentionTest, HeadSizesOfModels) {
  for (const int64_t head_dim : {64, 128, 256, 512}) {
    for (const int64_t window : {0, 33, 200}) {
      CacheSetup setup{.dtype = random.pick({DType::kBF16, DType::kI8}),
                       .kv_heads = 2,
                       .group = random.pick<int64_t>({1, 2, 6, 8, 17}),
                       .head_dim = head_dim,
                       .page_tokens = random.pick<int64_t>({16, 32, 64, 256}),
                       .window = window};
      setup.scale = random.pick({0.3f, 1 / std::sqrt(static_cast<float>(head_dim))});
      const int64_t length = random.integer(330, 400);
      const Text text = random_text(random, setup, length);
      Bed bed(setup, 60, random);
      bed.add(text);
      const int64_t last = random.integer(2, 4);
      std::vector<int64_t> chunks = {random.integer(1, 3), 150, length - 160 - last, 1, last};
      compute(setup, bed, 0, text, chunks);
      for (const int64_t at : {int64_t{0}, int64_t{64}, int64_t{100}, length - 20, length - 6}) {
        expect_reference(setup, text, bed.out(0), at, std::min(at + 6, length));
      }
    }
  }
}

// Long enough for several splits of several stretches of keys.
TEST_P(AttentionTest, LongSequencesOfWideHeads) {
  for (const int64_t head_dim : {64, 256}) {
    const CacheSetup setup{.dtype = random.pick({DType::kBF16, DType::kI8}),
                           .kv_heads = 1,
                           .group = 2,
                           .head_dim = head_dim,
                           .page_tokens = 64,
                           .window = random.pick<int64_t>({0, small_tests() ? 1300 : 4200}),
                           .scale = 0.2f};
    const int64_t length = small_tests() ? 1500 : 4400;
    const Text text = random_text(random, setup, length);
    Bed bed(setup, 80, random);
    bed.add(text);
    compute(setup, bed, 0, text, {length - 7, 1, 3, 1, 1, 1});
    for (const int64_t at : {int64_t{1023}, length - 201}) {
      expect_reference(setup, text, bed.out(0), at, at + 2);
    }
    expect_reference(setup, text, bed.out(0), length - 9, length);
  }
}

// Whatever the kernel, who shares a step with a sequence does not matter.
TEST_P(AttentionTest, MatesOfWideHeadsDoNotChangeABit) {
  for (const int64_t head_dim : {64, 128, 256, 512}) {
    const CacheSetup setup{.dtype = random.pick({DType::kBF16, DType::kI8}),
                           .kv_heads = 2,
                           .group = random.pick<int64_t>({1, 4, 8}),
                           .head_dim = head_dim,
                           .window = random.pick<int64_t>({0, 50}),
                           .scale = 0.1f};
    SCOPED_TRACE(describe(setup));
    const Text text = random_text(random, setup, 230);
    Text mate = random_text(random, setup, 500);
    for (std::vector<float>* values : {&mate.queries, &mate.written.keys, &mate.written.values}) {
      std::fill(values->begin(), values->end(), kNan);
    }
    const std::vector<int64_t> chunks = {7, 200, 1, 1, 1, 20};
    Bed alone(setup, 40, random);
    alone.add(text);
    compute(setup, alone, 0, text, chunks);
    Bed bed(setup, 80, random);
    const int first = bed.add(mate), own = bed.add(text), last = bed.add(mate);
    for (const int64_t chunk : chunks) {
      std::vector<Bed::Part> parts = {{own, chunk}};
      for (const int other : {first, last}) parts.push_back({other, random.integer(0, 80)});
      std::shuffle(parts.begin(), parts.end(), random.engine());
      bed.step(stream, workspace, parts);
    }
    EXPECT_EQ(bits_of(bed.out(own)), bits_of(alone.out(0)));
  }
}

BRAID_INSTANTIATE_PER_TARGET(AttentionTest);

TEST(AttentionPlan, CoversEveryQueryAndSplitsLongSequences) {
  Random random;
  SCOPED_TRACE(fmt::format("BRAID_TEST_SEED={}", random.seed()));
  Workspace workspace(size_t{1} << 28);
  int split_items = 0;
  for (int round = 0; round < 200; ++round) {
    Workspace::Scope scope(workspace);
    const AttentionShape shape{.kv_heads = random.integer(1, 4),
                               .group = random.integer(1, 40),
                               .head_dim = 64,
                               .window = random.pick<int64_t>({0, 0, 1, 1024, 3000})};
    std::vector<SequenceRows> sequences;
    const int64_t count = random.integer(0, 4);
    for (int64_t s = 0; s < count; ++s) {
      sequences.push_back({.num_rows = random.integer(0, 1) ? 1 : random.integer(0, 100),
                           .first_position = random.integer(0, 20000)});
    }
    const AttentionPlan plan =
        plan_attention(workspace, sequences, shape, static_cast<int>(random.integer(1, 16)));
    // (sequence, head, query) -> the splits it is given
    std::map<std::tuple<int64_t, int64_t, int64_t>, std::vector<int64_t>> given;
    std::map<int32_t, int32_t> arrivals;
    for (const AttentionItem& item : plan.items) {
      if (item.split >= 0) ++split_items, ++arrivals[item.countdown];
      for (int64_t q = 0; q < item.num_queries; ++q) {
        given[{item.sequence, item.kv_head, item.first_query + q}].push_back(item.split);
      }
    }
    for (size_t i = 0; i < plan.countdowns.size(); ++i) {
      EXPECT_EQ(plan.countdowns[i], arrivals[static_cast<int32_t>(i)]);
    }
    size_t expected = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        for (int64_t q = 0; q < sequences[s].num_rows * shape.group; ++q, ++expected) {
          const std::vector<int64_t>& splits = given[{static_cast<int64_t>(s), head, q}];
          ASSERT_FALSE(splits.empty());
          if (splits == std::vector<int64_t>{-1}) continue;
          const KeyRange keys = visible_keys(sequences[s], q / shape.group, shape.window);
          for (int64_t split = first_split(keys); split < first_split(keys) + num_splits(keys);
               ++split) {
            ASSERT_EQ(std::count(splits.begin(), splits.end(), split), 1);
          }
        }
      }
    }
    EXPECT_EQ(given.size(), expected);
  }
  EXPECT_GT(split_items, 0);

  // One token after 100,000, on 16 threads: no thread is left without work.
  const std::vector<SequenceRows> lone = {{.num_rows = 1, .first_position = 100000}};
  Workspace::Scope scope(workspace);
  EXPECT_GE(plan_attention(workspace, lone, {.group = 8, .head_dim = 64}, 16).items.size(), 16u);
}

}  // namespace
}  // namespace braid

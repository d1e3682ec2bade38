#include "ops/attention/attention.h"

#include <array>

#include "ops/attention/attention_bed.h"

namespace braid {
namespace {

class AttentionTest : public AttentionOpTest {};

TEST_P(AttentionTest, MatchesReferenceOverMixedBatches) {
  for (int round = 0; round < (small_tests() ? 2 : 25); ++round) {
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
    const CacheSetup setup{.dtype = dtype,
                           .kv_heads = 2,
                           .group = small_tests() ? 2 : 8,
                           .head_dim = 512,
                           .window = 40};
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
    const int64_t only = random.pick<int64_t>({0, 1500});
    for (const int64_t window : {int64_t{0}, kSplitKeys, kSplitKeys + 1, int64_t{1500}}) {
      if (small_tests() && window != only) continue;
      const CacheSetup setup{.dtype = dtype,
                             .kv_heads = 1,
                             .group = random.integer(1, 3),
                             .head_dim = 16,
                             .page_tokens = 64,
                             .window = window};
      const int64_t length = 2 * kSplitKeys + (small_tests() ? 20 : 40);
      const Text text = random_text(random, setup, length);
      Bed bed(setup, 50, random);
      bed.add(text);
      // Small: queries from there on alone.
      const int64_t first = small_tests() ? 2 * kSplitKeys - 8 : 0;
      if (first > 0) bed.step(stream, workspace, {{0, first}}, false);
      const std::vector<int64_t> all = {kSplitKeys - 3, 1, 1, 1, 1, 1, kSplitKeys - 5, 1, 1, 1};
      const std::vector<int64_t> few = {7, 1, 1, 19};
      compute(setup, bed, 0, text, small_tests() ? few : all);
      for (const int64_t edge : {window, kSplitKeys, 2 * kSplitKeys}) {
        expect_reference(setup, text, bed.out(0), std::max(first, edge - 3),
                         std::min(length, edge + 3));
      }
      expect_reference(setup, text, bed.out(0), length - 1, length);
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
    // Along the first query of each KV head, so that its weight cannot be rounded away.
    const auto show = [&](int64_t key) {
      const float* query = text.queries.data() + position * setup.heads() * setup.head_dim;
      for (int64_t i = 0; i < row; ++i) {
        const int64_t head = i / setup.head_dim * setup.group;
        text.written.keys[key * row + i] = 4 * query[head * setup.head_dim + i % setup.head_dim];
        text.written.values[key * row + i] = 3;
      }
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
        if (std::isnan(value)) {
          disturb(position - window + 1, value);
        } else {
          show(position - window + 1);
        }
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
      if (small_tests() && window == 200) continue;
      CacheSetup setup{.dtype = random.pick({DType::kBF16, DType::kI8}),
                       .kv_heads = small_tests() ? 1 : 2,
                       .group = small_tests() ? random.pick<int64_t>({1, 6})
                                              : random.pick<int64_t>({1, 2, 6, 8, 17}),
                       .head_dim = head_dim,
                       .page_tokens = random.pick<int64_t>({16, 32, 64, 256}),
                       .window = window,
                       .aligned = random.integer(0, 1) == 1};
      setup.scale = random.pick({0.3f, 1 / std::sqrt(static_cast<float>(head_dim))});
      const int64_t length = small_tests() ? random.integer(180, 240) : random.integer(330, 400);
      const Text text = random_text(random, setup, length);
      Bed bed(setup, 60, random);
      bed.add(text);
      const int64_t last = random.integer(2, 4);
      std::vector<int64_t> chunks = {random.integer(1, 3), 150, length - 160 - last, 1, last};
      if (small_tests()) chunks[1] = 70, chunks[2] = length - 80 - last;
      compute(setup, bed, 0, text, chunks);
      for (const int64_t at : {int64_t{0}, int64_t{64}, int64_t{100}, length - 20, length - 6}) {
        expect_reference(setup, text, bed.out(0), at, std::min(at + 6, length));
      }
    }
  }
}

// Chunks of prompts that end and begin anywhere in tiles of queries, keys and pages.
TEST_P(AttentionTest, PromptsInChunks) {
  for (int round = 0; round < 12; ++round) {
    const int64_t window = std::array{0, 1, 63, 64, 100, 129}[round / 2];
    if (small_tests() && window != 0 && window != 100) continue;
    CacheSetup setup{.dtype = DType::kBF16,
                     .kv_heads = small_tests() ? 1 : random.integer(1, 3),
                     .group = small_tests() ? 2 : random.pick<int64_t>({1, 2, 3, 5, 8}),
                     .head_dim = round % 2 == 0 ? 256 : 512,
                     .page_tokens = random.pick<int64_t>({8, 16, 32, 64, 128, 256}),
                     .window = window,
                     .aligned = true};
    setup.scale = random.pick({0.3f, 1.0f / 16});
    SCOPED_TRACE(describe(setup));
    std::vector<Text> texts;
    for (const int64_t length :
         {int64_t{129}, random.integer(65, 130), random.integer(200, small_tests() ? 210 : 460)}) {
      texts.push_back(random_text(random, setup, length));
    }
    Bed bed(setup, 800 / setup.page_tokens + 6, random);
    for (const Text& text : texts) bed.add(text);
    for (;;) {
      std::vector<Bed::Part> parts;
      for (size_t s = 0; s < texts.size(); ++s) {
        const int64_t left = texts[s].length(setup) - bed.done(static_cast<int>(s));
        if (left == 0) continue;
        const int64_t tokens = random.pick<int64_t>({0, 17, 64, 65, 100, 128, 129, 256});
        parts.push_back({static_cast<int>(s), std::min(left, tokens)});
      }
      if (parts.empty()) break;
      std::shuffle(parts.begin(), parts.end(), random.engine());
      bed.step(stream, workspace, parts);
    }
    for (size_t s = 0; s < texts.size(); ++s) {
      const int64_t length = texts[s].length(setup), some = small_tests() ? 2 : 9;
      const int64_t inside = random.integer(0, length - some);
      for (const int64_t at : {int64_t{0}, int64_t{60}, inside, length - some}) {
        expect_reference(setup, texts[s], bed.out(static_cast<int>(s)), at,
                         std::min(at + some, length));
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
                           .scale = 0.2f,
                           .aligned = random.integer(0, 1) == 1};
    const int64_t length = small_tests() ? 1500 : 4400;
    const Text text = random_text(random, setup, length);
    Bed bed(setup, 80, random);
    bed.add(text);
    const int64_t first = small_tests() ? length - 210 : 0;
    if (first > 0) bed.step(stream, workspace, {{0, first}}, false);
    compute(setup, bed, 0, text, {length - first - 7, 1, 3, 1, 1, 1});
    for (const int64_t at : {int64_t{1023}, length - 201}) {
      if (at >= first) expect_reference(setup, text, bed.out(0), at, at + 2);
    }
    expect_reference(setup, text, bed.out(0), length - 9, length);
  }
}

BRAID_INSTANTIATE_PER_TARGET(AttentionTest);

}  // namespace
}  // namespace braid

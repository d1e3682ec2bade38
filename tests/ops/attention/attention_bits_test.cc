// What must not change a bit of attention().

#include "ops/attention/attention_bed.h"

namespace braid {
namespace {

class AttentionBitsTest : public AttentionOpTest {};

TEST_P(AttentionBitsTest, ChunksThreadsAndMatesDoNotChangeABit) {
  for (int round = 0; round < (small_tests() ? 1 : 6); ++round) {
    CacheSetup setup = random_setup();
    if (on_tensor_cores(setup)) {
      setup.dtype = DType::kF32;
      setup.static_scales = {};
    }
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
TEST_P(AttentionBitsTest, SplittingKeysDoesNotChangeABit) {
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

// Whatever the kernel, who shares a step with a sequence does not matter.
TEST_P(AttentionBitsTest, MatesOfWideHeadsDoNotChangeABit) {
  for (const int64_t head_dim : {64, 128, 256, 512}) {
    const CacheSetup setup{.dtype = random.pick({DType::kBF16, DType::kI8}),
                           .kv_heads = 2,
                           .group = random.pick<int64_t>({1, 4, 8}),
                           .head_dim = head_dim,
                           .window = random.pick<int64_t>({0, 50}),
                           .scale = 0.1f,
                           .aligned = random.integer(0, 1) == 1};
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

// On a deterministic stream nor does it matter with how many rows of its own a row is computed:
// prompts at once, in chunks, one by one.
TEST_P(AttentionBitsTest, ChunksOfWideHeadsDoNotChangeABitOfADeterministicStream) {
  if (!on_cuda()) GTEST_SKIP() << "for devices";
  stream.cuda().set_deterministic(true);
  for (const DType dtype : {DType::kBF16, DType::kI8}) {
    for (const int64_t head_dim : {64, 128, 256, 512}) {
      CacheSetup setup{.dtype = dtype,
                       .kv_heads = random.integer(1, 2),
                       .group = random.pick<int64_t>({1, 2, 3, 5, 8, 16, 20}),
                       .head_dim = head_dim,
                       .page_tokens = random.pick<int64_t>({16, 32, 64}),
                       .window = random.pick<int64_t>({0, 0, 1, 31, 50, 64, 65, 128}),
                       .scale = 0.1f,
                       .aligned = random.integer(0, 1) == 1};
      if (small_tests()) setup.group = std::min<int64_t>(setup.group, 3);
      if (dtype == DType::kI8 && random.integer(0, 1) == 1) {
        setup.static_scales = random_scales(head_dim);
      }
      SCOPED_TRACE(describe(setup));
      const int64_t length = random.integer(130, small_tests() ? 140 : 270);
      const Text text = random_text(random, setup, length);
      Bed whole(setup, 20, random);
      whole.add(text);
      whole.step(stream, workspace, {{0, length}});
      for (const int64_t first : {int64_t{0}, int64_t{61}, int64_t{125}, length - 3}) {
        expect_reference(setup, text, whole.out(0), first, std::min(first + 6, length));
        if (HasFatalFailure()) return;
      }
      const std::vector<uint32_t> expected = bits_of(whole.out(0));
      const std::vector<std::vector<int64_t>> series = {
          {1}, {2, 5}, {random.integer(1, 40), random.integer(1, 40)}, {63, 1, 66}};
      for (const std::vector<int64_t>& chunks : series) {
        if (small_tests() && chunks[0] < 3) continue;
        Bed bed(setup, 20, random);
        bed.add(text);
        compute(setup, bed, 0, text, chunks);
        ASSERT_EQ(bits_of(bed.out(0)), expected) << "chunks of " << chunks[0];
      }
      Text mate = random_text(random, setup, 300);
      for (std::vector<float>* values : {&mate.queries, &mate.written.keys, &mate.written.values}) {
        std::fill(values->begin(), values->end(), kNan);
      }
      Bed bed(setup, 60, random);
      const int first = bed.add(mate), own = bed.add(text), last = bed.add(mate);
      while (bed.done(own) < length) {
        const int64_t tokens = std::min(length - bed.done(own), random.integer(1, 80));
        std::vector<Bed::Part> parts = {{own, tokens}};
        for (const int other : {first, last}) {
          parts.push_back({other, std::min(300 - bed.done(other), random.integer(0, 60))});
        }
        std::shuffle(parts.begin(), parts.end(), random.engine());
        bed.step(stream, workspace, parts);
      }
      ASSERT_EQ(bits_of(bed.out(own)), expected) << "in a batch";
    }
  }
}

// The same where spans become longer (KeySpans), with a window and without.
TEST_P(AttentionBitsTest, SpansOfLongTextsDoNotChangeABitOfADeterministicStream) {
  if (!on_cuda()) GTEST_SKIP() << "for devices";
  stream.cuda().set_deterministic(true);
  for (const int64_t window : {0, 1024, 4000}) {
    if (small_tests() && window != 0) continue;
    for (const int64_t length : {int64_t{2048 + 3}, 2 * 2048 + random.integer(1, 600)}) {
      if (small_tests() && length > 3000) continue;
      const CacheSetup setup{.dtype = random.pick({DType::kBF16, DType::kI8}),
                             .kv_heads = 1,
                             .group = random.pick<int64_t>({1, 2, 4}),
                             .head_dim = random.pick<int64_t>({64, 128, 256, 512}),
                             .page_tokens = 64,
                             .window = window,
                             .scale = 0.1f,
                             .aligned = true};
      SCOPED_TRACE(describe(setup));
      const Text text = random_text(random, setup, length);
      const int64_t rows = small_tests() ? 40 : 90;
      std::vector<std::vector<uint32_t>> results;
      for (const int64_t chunk : {rows, int64_t{1}, random.integer(2, 20)}) {
        Bed bed(setup, 100, random);
        bed.add(text);
        bed.step(stream, workspace, {{0, length - rows}}, false);
        compute(setup, bed, 0, text, {chunk});
        const int64_t row = setup.heads() * setup.head_dim;
        results.push_back(bits_of(bed.out(0), (length - rows) * row, length * row));
        ASSERT_EQ(results.back(), results.front()) << "chunks of " << chunk;
        if (chunk != rows) continue;
        for (const int64_t first : {length - rows, length - 5}) {
          expect_reference(setup, text, bed.out(0), first, first + 5);
        }
      }
    }
  }
}

BRAID_INSTANTIATE_PER_TARGET(AttentionBitsTest);

}  // namespace
}  // namespace braid

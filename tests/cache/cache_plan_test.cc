#include "cache/cache_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "cache/cache_pool.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The 26B-A4B pattern: five sliding layers, then a full one.
CacheLayout a4b_layout() {
  CacheLayout layout;
  for (int l = 0; l < 30; ++l) {
    if (l % 6 == 5) {
      layout.layers.push_back(FullKv{.num_kv_heads = 2, .head_dim = 512});
    } else {
      layout.layers.push_back(WindowKv{.num_kv_heads = 8, .head_dim = 256, .window = 1024});
    }
  }
  return layout;
}

TEST(CachePlan, EqualDeclarationsFormAGroup) {
  CacheLayout layout;
  layout.layers = {WindowKv{2, 64, 16}, FullKv{1, 128}, NoCache{},     WindowKv{2, 64, 16},
                   WindowKv{2, 64, 32}, FullKv{1, 128}, SharesKvOf{3}, SharesKvOf{1}};
  const CachePlan plan = plan_cache(layout, {.max_tokens = 1000});
  ASSERT_EQ(plan.groups.size(), 3u);
  EXPECT_THAT(plan.groups[0].layers, ElementsAre(0, 3));
  EXPECT_THAT(plan.groups[1].layers, ElementsAre(1, 5));
  EXPECT_THAT(plan.groups[2].layers, ElementsAre(4));
  EXPECT_EQ(plan.groups[1].window, 0);
  EXPECT_EQ(plan.groups[2].window, 32);
  EXPECT_EQ(plan.layers[2].group, -1);
  EXPECT_EQ(plan.layers[6].group, 0);
  EXPECT_EQ(plan.layers[6].owner, 3);
  EXPECT_EQ(plan.layers[7].owner, 1);
}

TEST(CachePlan, BytesPerTokenOfPublishedSizes) {
  const CachePlan plan = plan_cache(a4b_layout(), {.kv_dtype = DType::kBF16, .max_tokens = 8192});
  EXPECT_EQ(plan.window_bytes_per_token(), 204800);
  EXPECT_EQ(plan.full_bytes_per_token(), 20480);
}

TEST(CachePlan, Int8TakesAByteAnElementAndAScale) {
  CacheLayout layout;
  layout.layers = {WindowKv{2, 64, 16}, FullKv{1, 128}, FullKv{1, 128}, SharesKvOf{2}};
  const CacheOptions options{.kv_dtype = DType::kI8, .max_tokens = 1000, .max_sequences = 3};
  const CachePlan plan = plan_cache(layout, options);
  EXPECT_EQ(plan.window_bytes_per_token(), 2 * 2 * (64 + 4));
  EXPECT_EQ(plan.full_bytes_per_token(), 2 * 2 * (128 + 4));
  const CachePool pool(layout, options);
  EXPECT_EQ(pool.size_bytes(), plan.size_bytes());
  const PagedKv kv = pool.layer_kv(0);
  EXPECT_EQ(kv.keys.dtype(), DType::kI8);
  EXPECT_EQ(kv.key_scales.shape(), (Shape{plan.groups[0].num_pages, 2, 32}));
  EXPECT_EQ(kv.value_scales.shape(), kv.key_scales.shape());
  EXPECT_NE(kv.value_scales.raw(), kv.key_scales.raw());
  EXPECT_EQ(pool.layer_kv(3).key_scales.raw(), pool.layer_kv(2).key_scales.raw());
}

TEST(CachePlan, RingHoldsWindowAndStepPlusOnePage) {
  const CachePlan plan =
      plan_cache(a4b_layout(), {.max_tokens = 1 << 20, .max_sequences = 4, .max_step_tokens = 512});
  const CacheGroup& ring = plan.groups[0];
  EXPECT_EQ(ring.max_pages_per_sequence, (1023 + 512 + 31) / 32 + 1);
  EXPECT_EQ(ring.num_pages, 4 * ring.max_pages_per_sequence);
  EXPECT_EQ(ring.size_bytes, ring.num_pages * 32 * ring.bytes_per_token);
  // What a sequence holds stops growing in the ring and goes on in the full group.
  const int64_t full_page_bytes = plan.groups[1].page_bytes;
  EXPECT_EQ(plan.sequence_bytes(100000) - plan.sequence_bytes(50016),
            (100000 - 50016 + 31) / 32 * full_page_bytes);
  EXPECT_EQ(plan.sequence_bytes(12), ring.page_bytes + full_page_bytes);
}

TEST(CachePlan, ShortContextTakesNoMoreThanFull) {
  const CachePlan plan =
      plan_cache(a4b_layout(), {.max_tokens = 300, .max_sequences = 2, .max_step_tokens = 512});
  EXPECT_EQ(plan.groups[0].max_pages_per_sequence, 10);
  EXPECT_LE(plan.groups[0].num_pages, plan.groups[1].num_pages);
  EXPECT_EQ(plan.options.max_sequence_tokens, 300);
}

TEST(CachePlan, PoolReservesThePlannedBytes) {
  CacheLayout layout;
  layout.layers = {WindowKv{2, 64, 16}, FullKv{1, 128}, SharesKvOf{0}, NoCache{}};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    CachePool pool(layout, {.kv_dtype = dtype, .max_tokens = 1000, .max_sequences = 3});
    EXPECT_EQ(pool.size_bytes(), pool.plan().size_bytes());
    EXPECT_TRUE(pool.idle());
    EXPECT_EQ(pool.layer_kv(0).keys.dtype(), dtype);
    EXPECT_EQ(pool.layer_kv(1).keys.shape(), (Shape{pool.plan().groups[1].num_pages, 1, 32, 128}));
    EXPECT_EQ(pool.layer_kv(2).keys.raw(), pool.layer_kv(0).keys.raw());
    EXPECT_NE(pool.layer_kv(0).values.raw(), pool.layer_kv(0).keys.raw());
    EXPECT_TRUE(pool.layer_kv(3).keys.empty());
  }
}

struct BadOptions {
  CacheOptions options;
  const char* message;
};

TEST(CachePlan, RefusesUnusableOptionsByName) {
  const BadOptions cases[] = {
      {{.page_tokens = 0, .max_tokens = 100}, "page_tokens is 0"},
      {{.page_tokens = 24, .max_tokens = 100}, "page_tokens is 24, must be a power of two"},
      {{.page_tokens = 512, .max_tokens = 100}, "page_tokens is 512"},
      {{.kv_dtype = DType::kF16, .max_tokens = 100}, "kv_dtype is f16"},
      {{.max_tokens = 0}, "max_tokens is 0"},
      {{.max_tokens = -5}, "max_tokens is -5"},
      {{.max_tokens = 100, .max_sequences = 0}, "max_sequences is 0"},
      {{.max_tokens = 100, .max_sequence_tokens = -1}, "max_sequence_tokens is -1"},
      {{.max_tokens = 100, .max_step_tokens = 0}, "max_step_tokens is 0"},
      {{.max_tokens = int64_t{1} << 50}, "max_tokens is"},
      {{.page_tokens = 8, .max_tokens = int64_t{1} << 40}, "use larger pages"},
  };
  for (const BadOptions& c : cases) {
    try {
      plan_cache(a4b_layout(), c.options);
      ADD_FAILURE() << "accepted: " << c.message;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(c.message));
    }
  }
}

TEST(CachePlan, SizesThatOverflowAreRefused) {
  CacheLayout layout;
  layout.layers = {FullKv{int64_t{1} << 30, int64_t{1} << 30}};
  EXPECT_THROW(plan_cache(layout, {.max_tokens = 1000}), Error);
}

TEST(CachePlanDeathTest, SharingWithALaterOrBorrowingLayerIsABug) {
  CacheLayout later;
  later.layers = {SharesKvOf{1}, FullKv{1, 8}};
  EXPECT_DEATH(plan_cache(later, {.max_tokens = 100}), "layer 0 shares");
  CacheLayout borrower;
  borrower.layers = {FullKv{1, 8}, SharesKvOf{0}, SharesKvOf{1}};
  EXPECT_DEATH(plan_cache(borrower, {.max_tokens = 100}), "layer 2 shares");
  CacheLayout nothing;
  nothing.layers = {NoCache{}, SharesKvOf{0}};
  EXPECT_DEATH(plan_cache(nothing, {.max_tokens = 100}), "layer 1 shares");
}

TEST(CachePlan, RecurrentLayersTakeASlotASequenceHoweverLongItIs) {
  // Qwen3-Next 80B: 36 layers with 32 states of 128 x 128, convolution over 8192 channels.
  CacheLayout layout;
  for (int i = 0; i < 48; ++i) {
    if (i % 4 == 3) {
      layout.layers.push_back(FullKv{2, 256});
    } else {
      layout.layers.push_back(RecurrentState{16, 32, 128, 128, 8192, 4});
    }
  }
  CacheOptions options{
      .kv_dtype = DType::kBF16, .max_tokens = 1 << 20, .max_sequences = 4, .max_step_tokens = 512};
  const CachePlan plain = plan_cache(layout, options);
  EXPECT_EQ(plain.full_bytes_per_token(), 24576);
  ASSERT_EQ(plain.recurrent_groups.size(), 1u);
  EXPECT_EQ(plain.recurrent_groups[0].num_slots, 4);
  EXPECT_EQ(plain.recurrent_groups[0].layers.size(), 36u);
  EXPECT_EQ(plain.recurrent_bytes_per_sequence(), 36 * 4 * (32 * 128 * 128 + 3 * 8192));
  EXPECT_EQ(plain.sequence_bytes(0), 0);
  EXPECT_EQ(plain.sequence_bytes(1000) - plain.recurrent_bytes_per_sequence(), 32 * 32 * 24576);

  options.max_logged_tokens = 4;
  const CachePlan logged = plan_cache(layout, options);
  // Keys, corrections, decays and convolution rows of each token.
  EXPECT_EQ(logged.recurrent_bytes_per_sequence() - plain.recurrent_bytes_per_sequence(),
            36 * 4 * 4 * (16 * 128 + 32 * 128 + 32 + 8192));
  EXPECT_EQ(CachePool(layout, options).size_bytes(), logged.size_bytes());
}

}  // namespace
}  // namespace braid

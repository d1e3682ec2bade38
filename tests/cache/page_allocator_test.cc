#include "cache/page_allocator.h"

#include <gtest/gtest.h>

#include <set>

namespace braid {
namespace {

TEST(PageAllocator, HandsOutEachPageOnceAndTheWarmestFirst) {
  PageAllocator pages(4);
  EXPECT_EQ(pages.num_free(), 4);
  std::set<int32_t> taken;
  for (int i = 0; i < 4; ++i) taken.insert(pages.take());
  EXPECT_EQ(taken, (std::set<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(pages.num_used(), 4);
  pages.give_back(3);
  pages.give_back(1);
  EXPECT_EQ(pages.take(), 1);
  EXPECT_EQ(pages.take(), 3);
}

TEST(PageAllocatorDeathTest, MisuseIsCaught) {
  PageAllocator pages(1);
  EXPECT_DEATH(pages.give_back(0), "page 0 of 1");
  pages.take();
  EXPECT_DEATH(pages.take(), "all 1 pages are in use");
  EXPECT_DEATH(pages.give_back(1), "page 1 of 1");
}

}  // namespace
}  // namespace braid

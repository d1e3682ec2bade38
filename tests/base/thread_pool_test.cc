#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <numeric>

namespace braid {
namespace {

TEST(ThreadPool, RunsTheBodyOnceOnEveryThread) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool({.num_threads = threads});
    EXPECT_EQ(pool.num_threads(), threads);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> calls(threads);
      std::vector<std::thread::id> ids(threads);
      pool.run([&](int thread) {
        ++calls[thread];
        ids[thread] = std::this_thread::get_id();
      });
      for (int i = 0; i < threads; ++i) {
        ASSERT_EQ(calls[i].load(), 1);
        for (int j = 0; j < i; ++j) ASSERT_NE(ids[i], ids[j]);
      }
      ASSERT_EQ(ids[0], std::this_thread::get_id());
    }
  }
}

TEST(ThreadPool, ParallelForCoversEveryItemOnce) {
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool({.num_threads = threads});
    for (const int64_t count : {-1, 0, 1, 2, 3, 7, 8, 9, 100, 1001}) {
      for (const int64_t grain : {-5, 0, 1, 2, 3, 8, 100, 5000}) {
        std::vector<std::atomic<int>> visits(count > 0 ? count : 0);
        std::atomic<bool> in_order{true};
        pool.parallel_for(count, grain, [&](int64_t begin, int64_t end, int thread) {
          const int64_t size = std::max<int64_t>(grain, 1);
          const bool full = end - begin == size || end == count;
          if (begin % size != 0 || !full || thread < 0 || thread >= threads) in_order = false;
          for (int64_t i = begin; i < end; ++i) ++visits[i];
        });
        EXPECT_TRUE(in_order);
        for (const std::atomic<int>& n : visits) ASSERT_EQ(n.load(), 1);
      }
    }
  }
}

TEST(ThreadPool, WakesSleepingWorkers) {
  // No spinning: workers sleep between any two regions.
  ThreadPool pool({.num_threads = 3, .spin_us = 0});
  for (int round = 0; round < 300; ++round) {
    std::atomic<int> sum{0};
    pool.run([&](int thread) { sum += thread; });
    ASSERT_EQ(sum.load(), 3);
    if (round % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Writes of a region are seen after it, and those before it are seen inside.
TEST(ThreadPool, OrdersMemory) {
  ThreadPool pool({.num_threads = 4});
  std::vector<int> values(64, 0);
  for (int round = 1; round <= 500; ++round) {
    pool.parallel_for(64, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) values[i] = values[(i + 64) % 64] + 1;
    });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), 0), 64 * round);
  }
}

TEST(ThreadPool, MayBeDestroyedAtOnce) {
  for (int i = 0; i < 50; ++i) ThreadPool pool({.num_threads = 3});
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool({.num_threads = 3, .spin_us = 0});
    pool.run([](int) {});
  }
}

TEST(ThreadPool, UsesAllowedProcessorsByDefaultAndPins) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  // On a thread of its own: pinning holds for the thread that makes the pool.
  std::thread([&] {
    ThreadPool pool({.pin = true});
    EXPECT_EQ(pool.num_threads(), CPU_COUNT(&allowed));
    std::vector<int> processors(pool.num_threads(), -1);
    pool.run([&](int thread) {
      cpu_set_t set;
      if (sched_getaffinity(0, sizeof(set), &set) != 0 || CPU_COUNT(&set) != 1) return;
      for (int i = 0; i < CPU_SETSIZE; ++i) {
        if (CPU_ISSET(i, &set)) processors[thread] = i;
      }
    });
    std::vector<int> expected;
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &allowed)) expected.push_back(i);
    }
    EXPECT_EQ(processors, expected);
  }).join();
}

TEST(ThreadPoolDeathTest, RefusesNestedRegions) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const int threads : {1, 2}) {
    EXPECT_DEATH(
        {
          ThreadPool pool({.num_threads = threads});
          pool.run([&](int) { pool.run([](int) {}); });
        },
        "inside another");
  }
}

}  // namespace
}  // namespace braid

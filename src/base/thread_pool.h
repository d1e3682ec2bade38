#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace braid {

struct ThreadPoolOptions {
  int num_threads = 0;  // caller included; 0: one per processor the process may run on
  bool pin = false;     // bind thread i to the i-th of those processors
  int spin_us = 200;    // how long an idle worker spins before it sleeps
};

// Workers that live as long as the pool and run one parallel region at a time. The calling thread
// takes part as thread 0. Regions may be started by one thread at a time; a region must not start
// another on the same pool. Results never depend on the number of threads as long as each item
// writes its own output.
//
// parallel_for waits for the workers that have taken items, never for one that is asleep or that
// the system runs something else in place of: on a busy machine the others do its share.
class ThreadPool {
 public:
  // Throws Error if the threads cannot be started or pinned.
  explicit ThreadPool(const ThreadPoolOptions& options = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls body(thread) once on each thread, 0 <= thread < num_threads(). body must not throw.
  template <typename Body>
  void run(const Body& body) {
    run_erased(&call<Body>, &body, Attendance::kAll);
  }

  // Calls body(begin, end, thread) for ranges that cover [0, count) once, each of `grain` items
  // (the last may be shorter), handed out in order as threads become free.
  template <typename Body>
  void parallel_for(int64_t count, int64_t grain, const Body& body) {
    if (count <= 0) return;
    if (grain < 1) grain = 1;
    if (num_threads_ == 1 || count <= grain) {
      for (int64_t i = 0; i < count; i += grain) body(i, i + grain < count ? i + grain : count, 0);
      return;
    }
    next_.store(0, std::memory_order_relaxed);
    const auto take_items = [&](int thread) {
      for (;;) {
        const int64_t begin = next_.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= count) return;
        body(begin, begin + grain < count ? begin + grain : count, thread);
      }
    };
    run_erased(&call<decltype(take_items)>, &take_items, Attendance::kWhoComes);
  }

 private:
  using ErasedBody = void (*)(const void* context, int thread);
  enum class Attendance { kAll, kWhoComes };

  template <typename Body>
  static void call(const void* context, int thread) {
    (*static_cast<const Body*>(context))(thread);
  }
  void run_erased(ErasedBody body, const void* context, Attendance attendance);
  void worker(int thread);
  void stop();
  void wait_for_epoch_change(uint32_t seen);
  template <typename Done>
  void wait_until(const Done& done) const;

  // The region at hand: its number (upper half), whether workers may still enter it, and how many
  // are inside. A worker that finds it closed has nothing to do with it.
  static constexpr uint64_t kOpen = uint64_t{1} << 31;
  static constexpr uint64_t kInsideMask = kOpen - 1;
  static constexpr int kRegionShift = 32;

  int num_threads_;
  int spin_us_;
  ErasedBody body_ = nullptr;
  const void* context_ = nullptr;
  alignas(64) std::atomic<uint64_t> region_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};  // number of the newest region; futex word
  alignas(64) std::atomic<int> finished_{0};    // workers that have done the region's work
  alignas(64) std::atomic<int64_t> next_{0};    // next item of parallel_for
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> busy_{false};  // a region is running
  std::vector<std::thread> workers_;
};

}  // namespace braid

#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <system_error>

#include "base/check.h"
#include "base/error.h"

namespace braid {
namespace {

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

std::vector<int> allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> processors;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) processors.push_back(i);
    }
  }
  if (processors.empty()) processors.push_back(0);
  return processors;
}

void pin_to(pthread_t thread, int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  if (pthread_setaffinity_np(thread, sizeof(set), &set) != 0) {
    throw Error("cannot pin a thread to processor {}", processor);
  }
}

}  // namespace

ThreadPool::ThreadPool(const ThreadPoolOptions& options) : spin_us_(options.spin_us) {
  const std::vector<int> processors = allowed_processors();
  num_threads_ =
      options.num_threads > 0 ? options.num_threads : static_cast<int>(processors.size());
  // Spinning pays only if every thread has a processor to itself.
  if (num_threads_ > static_cast<int>(processors.size())) spin_us_ = 0;
  workers_.reserve(num_threads_ - 1);
  try {
    for (int i = 1; i < num_threads_; ++i) workers_.emplace_back([this, i] { worker(i); });
    if (options.pin) {
      pin_to(pthread_self(), processors[0]);
      for (int i = 1; i < num_threads_; ++i) {
        pin_to(workers_[i - 1].native_handle(), processors[i % processors.size()]);
      }
    }
  } catch (const std::system_error& error) {
    const size_t started = workers_.size();
    stop();
    throw Error("cannot start {} threads (only {}): {}; use fewer", num_threads_, started + 1,
                error.what());
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

// Spins, then gives the processor to whoever is waited for.
template <typename Done>
void ThreadPool::wait_until(const Done& done) const {
  const auto spin_end = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us_);
  for (int spins = 0; !done(); ++spins) {
    if (spin_us_ == 0 || (spins % 1024 == 1023 && std::chrono::steady_clock::now() > spin_end)) {
      while (!done()) std::this_thread::yield();
      return;
    }
    relax();
  }
}

void ThreadPool::run_erased(ErasedBody body, const void* context, Attendance attendance) {
  BRAID_CHECK(!busy_.exchange(true, std::memory_order_relaxed),
              "a parallel region started inside another");
  if (num_threads_ == 1) {
    body(context, 0);
    busy_.store(false, std::memory_order_relaxed);
    return;
  }
  body_ = body;
  context_ = context;
  finished_.store(0, std::memory_order_relaxed);
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  region_.store(uint64_t{epoch} << kRegionShift | kOpen, std::memory_order_release);
  epoch_.store(epoch, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) epoch_.notify_all();
  body(context, 0);
  if (attendance == Attendance::kAll) {
    wait_until([&] { return finished_.load(std::memory_order_acquire) == num_threads_ - 1; });
  }
  region_.fetch_and(~kOpen, std::memory_order_acq_rel);
  wait_until([&] { return (region_.load(std::memory_order_acquire) & kInsideMask) == 0; });
  busy_.store(false, std::memory_order_relaxed);
}

void ThreadPool::wait_for_epoch_change(uint32_t seen) {
  if (spin_us_ > 0) {
    const auto spin_end = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us_);
    for (;;) {
      for (int i = 0; i < 256; ++i) {
        if (epoch_.load(std::memory_order_acquire) != seen) return;
        relax();
      }
      if (std::chrono::steady_clock::now() > spin_end) break;
    }
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (epoch_.load(std::memory_order_seq_cst) == seen)
    epoch_.wait(seen, std::memory_order_seq_cst);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void ThreadPool::worker(int thread) {
  uint32_t seen = 0;
  for (;;) {
    wait_for_epoch_change(seen);
    if (stop_.load(std::memory_order_relaxed)) return;
    uint64_t region = region_.load(std::memory_order_acquire);
    // Never twice into the same region.
    const auto may_enter = [&] {
      return (region & kOpen) != 0 && static_cast<uint32_t>(region >> kRegionShift) != seen;
    };
    bool entered = false;
    while (may_enter() && !entered) {
      entered = region_.compare_exchange_weak(region, region + 1, std::memory_order_acq_rel,
                                              std::memory_order_acquire);
    }
    seen = static_cast<uint32_t>(region >> kRegionShift);
    if (!entered) continue;
    body_(context_, thread);
    finished_.fetch_add(1, std::memory_order_release);
    region_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace braid

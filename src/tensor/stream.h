#pragma once

#include "base/thread_pool.h"
#include "tensor/device.h"

namespace braid {

class Profiler;

// Where an op runs. On the CPU: a thread pool, and ops are done when they return. Owned by the
// runner; used by one thread at a time.
class Stream {
 public:
  explicit Stream(ThreadPool& pool) : pool_(&pool) {}

  Device device() const { return device_; }
  ThreadPool& pool() const { return *pool_; }

  // What watches the ops (tensor/profiler.h), if anything does. Set it between steps; it must
  // outlive its use here.
  Profiler* profiler() const { return profiler_; }
  void set_profiler(Profiler* profiler) { profiler_ = profiler; }

 private:
  Device device_;
  ThreadPool* pool_;
  Profiler* profiler_ = nullptr;
};

}  // namespace braid

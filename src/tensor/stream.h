#pragma once

#include "base/thread_pool.h"
#include "tensor/device.h"

namespace braid {

// Where an op runs. On the CPU: a thread pool, and ops are done when they return. Owned by the
// runner; used by one thread at a time.
class Stream {
 public:
  explicit Stream(ThreadPool& pool) : pool_(&pool) {}

  Device device() const { return device_; }
  ThreadPool& pool() const { return *pool_; }

 private:
  Device device_;
  ThreadPool* pool_;
};

}  // namespace braid

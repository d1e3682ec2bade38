#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "tensor/device.h"

namespace braid {

class Profiler;
namespace cuda {
class StreamState;
}

// Where an op runs. On the CPU: a thread pool, and ops are done when they return. On a CUDA device:
// a queue of that device; ops return once they are queued, and synchronize() waits for them. Owned
// by the runner's owner; used by one thread at a time.
class Stream {
 public:
  explicit Stream(ThreadPool& pool) : Stream(pool, Device{}) {}
  // Throws Error if there is no such device, or this build has no CUDA.
  Stream(ThreadPool& pool, Device device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device device() const { return device_; }
  bool is_cpu() const { return device_.is_cpu(); }
  ThreadPool& pool() const { return *pool_; }
  // Of a CUDA stream only (tensor/cuda/stream_state.h).
  cuda::StreamState& cuda() const { return *cuda_; }

  // Waits until all ops are done; throws Error for one that failed.
  void synchronize() const;

  // What watches the ops (tensor/profiler.h), if anything does. Set it between steps; it must
  // outlive its use here.
  Profiler* profiler() const { return profiler_; }
  void set_profiler(Profiler* profiler) { profiler_ = profiler; }

 private:
  struct DeleteState {
    void operator()(cuda::StreamState* state) const;
  };

  Device device_;
  ThreadPool* pool_;
  Profiler* profiler_ = nullptr;
  std::unique_ptr<cuda::StreamState, DeleteState> cuda_;
};

}  // namespace braid

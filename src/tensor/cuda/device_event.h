#pragma once

#include "tensor/cuda/stream_state.h"

// As in the CUDA headers, which only .cu files include.
struct CUevent_st;

namespace braid::cuda {

// A place in a stream's queue. A build without CUDA has it too; only then record() throws.
class DeviceEvent {
 public:
  DeviceEvent() = default;
  ~DeviceEvent();
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;

  // Behind all that is queued so far.
  void record(StreamState& state);
  // Until the stream has come to where this was recorded last; at once if it never was. Throws
  // Error for what failed before.
  void wait();

 private:
  CUevent_st* event_ = nullptr;
};

}  // namespace braid::cuda

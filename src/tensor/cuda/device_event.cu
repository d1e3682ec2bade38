#include "tensor/cuda/cuda_check.h"
#include "tensor/cuda/device_event.h"

namespace braid::cuda {

DeviceEvent::~DeviceEvent() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

void DeviceEvent::record(StreamState& state) {
  if (event_ == nullptr) {
    BRAID_CUDA_CHECK(cudaSetDevice(state.device()));
    BRAID_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  BRAID_CUDA_CHECK(cudaEventRecord(event_, state.handle()));
}

void DeviceEvent::wait() {
  if (event_ != nullptr) BRAID_CUDA_CHECK(cudaEventSynchronize(event_));
}

}  // namespace braid::cuda

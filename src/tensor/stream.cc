#include "tensor/stream.h"

#include "tensor/cuda/stream_state.h"
#include "tensor/profiler.h"

namespace braid {

Stream::Stream(ThreadPool& pool, Device device) : device_(device), pool_(&pool) {
  if (!device.is_cpu()) cuda_.reset(cuda::create_stream_state(device.index));
}

Stream::~Stream() = default;

void Stream::synchronize() const {
  if (!cuda_) return;
  if (profiler_ != nullptr) profiler_->let_go();
  cuda::synchronize(*cuda_);
}

void Stream::DeleteState::operator()(cuda::StreamState* state) const {
  cuda::destroy_stream_state(state);
}

}  // namespace braid

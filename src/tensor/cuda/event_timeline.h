#pragma once

#include <cstdint>
#include <memory>

#include "tensor/cuda/stream_state.h"
#include "tensor/device_timeline.h"

namespace braid::cuda {

// Marks that are CUDA events, kept for use again. The stream must outlive the last mark, not what
// is read from it. Waits for the stream once, here.
std::unique_ptr<DeviceTimeline> make_event_timeline(StreamState& stream);

// How often finish_op() was called.
int64_t num_finished_ops(const StreamState& stream);

}  // namespace braid::cuda

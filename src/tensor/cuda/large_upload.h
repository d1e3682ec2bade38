#pragma once

#include <cstddef>
#include <functional>

#include "tensor/cuda/stream_state.h"

namespace braid::cuda {

// Queues a copy of `bytes` that `make` writes, before the call returns, into pinned memory of the
// stream's own; for tables that StreamState::table() has no room for. The memory is kept, and grows
// to the largest of these (twice, since the host does not wait for the copy before). Throws Error
// as the functions of stream_state.h do.
void upload(StreamState& state, std::byte* target, size_t bytes,
            const std::function<void(std::byte*)>& make);

}  // namespace braid::cuda

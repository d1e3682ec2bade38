#pragma once

#include <vector>

#include "tensor/stream.h"
#include "tensor/tensor_view.h"

namespace braid {

// Brings float32 matrices to the host. Reuses its memory, which on a CUDA machine is pinned.
class HostCopy {
 public:
  HostCopy() = default;
  ~HostCopy();
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  // The view itself if it is on the host; else a dense copy, valid until the next call. Waits for
  // the stream.
  TensorView fetch(const Stream& stream, const TensorView& view);
  // Likewise, without waiting: what the copy holds is there once the stream has come so far.
  TensorView start(const Stream& stream, const TensorView& view);

 private:
  std::byte* data_ = nullptr;
  size_t capacity_bytes_ = 0;
};

}  // namespace braid

#pragma once

#include <cstddef>
#include <memory>

namespace braid::cuda {

// Copies of large pieces of host memory to a device, through pinned buffers that several threads
// fill: page faults, copies in the host's memory and copies over the bus overlap. Of one thread.
class PinnedUpload {
 public:
  // Waits for all copies.
  virtual ~PinnedUpload() = default;
  // Returns once `source` has been read.
  virtual void copy(std::byte* target, const void* source, size_t size_bytes) = 0;
  // Waits until all copies are done.
  virtual void finish() = 0;
};

// Throws Error as the functions of device_memory.h do.
std::unique_ptr<PinnedUpload> make_pinned_upload(int device);

}  // namespace braid::cuda

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace braid::cuda {

class StreamState;

// Blocks of pinned host memory that take turns in a few slots of a device's memory: block i comes
// to slot i % num_slots. A pass over consecutive blocks (of one stream at a time) copies them ahead
// of their use, beside the stream's kernels; all of it can be recorded in a graph. In a pass:
//
//   begin(first, end), then for each block in turn: wait(block), kernels that read it,
//   release(block)
class HostBlocks {
 public:
  virtual ~HostBlocks() = default;
  // What the host keeps of a block; fill it before the first pass.
  virtual std::byte* host(int block) const = 0;
  // Where kernels find it.
  virtual std::byte* slot(int block) const = 0;

  virtual void begin(StreamState& stream, int first, int end) = 0;
  virtual void wait(StreamState& stream, int block) = 0;
  virtual void release(StreamState& stream, int block) = 0;
};

// Throws Error as the functions of device_memory.h do.
std::unique_ptr<HostBlocks> make_host_blocks(const std::vector<size_t>& sizes, int num_slots,
                                             int device);

}  // namespace braid::cuda

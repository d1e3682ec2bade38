#pragma once

#include <cstddef>
#include <memory>

#include "tensor/buffer.h"
#include "tensor/tensor_view.h"

namespace braid {

namespace cuda {
class GrowingMemory;
}

// Scratch memory for one step at a time: a stack of views carved from one reservation, at the same
// addresses in every step that allocates the same sequence of shapes. Nothing is freed singly; a
// Scope gives back all that was taken since its start. Contents are undefined when taken.
class Workspace {
 public:
  // Reserves address space only; physical memory is used up to the high-water mark (of a CUDA
  // device: in pieces of some tens of MiB).
  explicit Workspace(size_t capacity_bytes, Device device = {});
  ~Workspace();

  // A dense view, 64-byte aligned. Throws Error when the capacity is exceeded.
  TensorView take(DType dtype, const Shape& shape);

  class Scope {
   public:
    explicit Scope(Workspace& workspace) : workspace_(workspace), mark_(workspace.used_bytes_) {}
    ~Scope() { workspace_.used_bytes_ = mark_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    size_t mark_;
  };

  size_t used_bytes() const { return used_bytes_; }
  size_t high_water_bytes() const { return high_water_bytes_; }
  size_t capacity_bytes() const { return capacity_bytes_; }
  Device device() const { return device_; }

 private:
  Device device_;
  size_t capacity_bytes_;
  Buffer buffer_;                                       // on the CPU
  std::unique_ptr<cuda::GrowingMemory> device_memory_;  // elsewhere
  std::byte* data_;
  size_t used_bytes_ = 0;
  size_t high_water_bytes_ = 0;
};

}  // namespace braid

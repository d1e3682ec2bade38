#pragma once

#include <cstddef>

#include "tensor/buffer.h"
#include "tensor/tensor_view.h"

namespace braid {

// Scratch memory for one step at a time: a stack of views carved from one reservation, at the same
// addresses in every step that allocates the same sequence of shapes. Nothing is freed singly; a
// Scope gives back all that was taken since its start. Contents are undefined when taken.
class Workspace {
 public:
  // Reserves address space only; physical memory is used up to the high-water mark.
  explicit Workspace(size_t capacity_bytes, Device device = {});

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
  size_t capacity_bytes() const { return buffer_.size_bytes(); }

 private:
  Buffer buffer_;
  size_t used_bytes_ = 0;
  size_t high_water_bytes_ = 0;
};

}  // namespace braid

#pragma once

#include <cstddef>
#include <memory>

#include "tensor/device.h"

namespace braid {

// Owned, 64-byte aligned memory on a device. CPU memory is a private mapping whose pages are zero
// and take physical memory when first written; buffers of a huge page or more ask for huge pages.
// CUDA memory is a plain device allocation, zeroed.
class Buffer {
 public:
  Buffer() = default;
  // Throws Error with the size if the memory cannot be had.
  Buffer(size_t size_bytes, Device device);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  Device device() const { return device_; }

 private:
  void release();

  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  Device device_;
};

}  // namespace braid

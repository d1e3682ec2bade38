#include "tensor/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

Buffer::Buffer(size_t size_bytes, Device device) : size_bytes_(size_bytes), device_(device) {
  if (size_bytes == 0) return;
  if (!device.is_cpu()) {
    data_ = cuda::allocate(size_bytes, device.index);
    return;
  }
  void* mapping = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    throw Error("cannot reserve {} bytes of memory: {}", size_bytes, std::strerror(errno));
  }
  data_ = static_cast<std::byte*>(mapping);
  // Advice only: without huge pages the memory still works.
  if (size_bytes >= kHugePageBytes) ::madvise(mapping, size_bytes, MADV_HUGEPAGE);
}

Buffer::~Buffer() { release(); }

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      device_(other.device_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
    device_ = other.device_;
  }
  return *this;
}

void Buffer::release() {
  if (data_ == nullptr) return;
  if (device_.is_cpu()) {
    ::munmap(data_, size_bytes_);
  } else {
    cuda::release(data_, size_bytes_, device_.index);
  }
  data_ = nullptr;
}

}  // namespace braid

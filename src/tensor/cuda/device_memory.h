#pragma once

#include <cstddef>
#include <memory>

namespace braid::cuda {

// Memory of CUDA devices. A build without CUDA has the same functions: there are then no devices,
// and the rest throws Error saying so. Calls are synchronous. All throw Error with CUDA's message
// on failure.

// False in a build without CUDA.
bool built_in();
// Devices that can be used; 0 also when there is no driver.
int num_devices();

std::byte* allocate(size_t size_bytes, int device);  // zeroed
// Never throws: called from destructors.
void release(std::byte* data, size_t size_bytes, int device) noexcept;

// Address space of which commit() backs the first bytes with memory, which keeps its address. Its
// size is rounded up to the device's granularity. Contents are undefined.
class GrowingMemory {
 public:
  virtual ~GrowingMemory() = default;
  virtual std::byte* data() const = 0;
  virtual size_t committed_bytes() const = 0;
  virtual void commit(size_t size_bytes) = 0;
};
std::unique_ptr<GrowingMemory> reserve(size_t size_bytes, int device);

// Allocations made while one of these lives can be read and written by the host too; for tests.
class ManagedMemoryScope {
 public:
  ManagedMemoryScope();
  ~ManagedMemoryScope();
  ManagedMemoryScope(const ManagedMemoryScope&) = delete;
  ManagedMemoryScope& operator=(const ManagedMemoryScope&) = delete;
};

void copy_to_device(std::byte* target, const void* source, size_t size_bytes, int device);
void copy_to_host(void* target, const std::byte* source, size_t size_bytes, int device);

}  // namespace braid::cuda

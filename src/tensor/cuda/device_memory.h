#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace braid::cuda {

// Memory of CUDA devices. A build without CUDA has the same functions: there are then no devices,
// and the rest throws Error saying so. Calls are synchronous. All throw Error with CUDA's message
// on failure.

// False in a build without CUDA.
bool built_in();
// Devices that can be used; 0 also when there is no driver.
int num_devices();

// All device memory that this process takes comes through here or through reserve(), or is counted
// by count_allocation(); the driver's own (contexts, code, graphs) apart.
std::byte* allocate(size_t size_bytes, int device);  // zeroed
// Never throws: called from destructors.
void release(std::byte* data, size_t size_bytes, int device) noexcept;

// Address space of which commit() backs the first bytes with memory, which keeps its address. Its
// size is rounded up to pieces of kPieceBytes, which memory comes in. Contents are undefined.
class GrowingMemory {
 public:
  // Fewer, larger pieces: mapping takes some hundred microseconds each.
  static constexpr size_t kPieceBytes = size_t{64} << 20;

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

// What an allocation takes: small ones share pieces of the driver's, others are whole pieces.
constexpr int64_t footprint(int64_t size_bytes) {
  constexpr int64_t kSmall = 512, kPiece = int64_t{2} << 20;
  const int64_t unit = size_bytes < kPiece / 2 ? kSmall : kPiece;
  return (size_bytes + unit - 1) / unit * unit;
}
// Footprints of what is allocated now, and the most there was at a time.
struct MemoryUse {
  int64_t bytes = 0;
  int64_t peak_bytes = 0;
};
MemoryUse memory_use(int device);
// From now on peaks count what is there from now on.
void reset_peak(int device) noexcept;
// `size_bytes` that were allocated, or released (negative), in another way.
void count_allocation(int64_t size_bytes, int device) noexcept;

// By the driver's count, whoever has what is not free. Makes the device's context.
struct DeviceRoom {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};
DeviceRoom device_room(int device);

void copy_to_device(std::byte* target, const void* source, size_t size_bytes, int device);
void copy_to_host(void* target, const std::byte* source, size_t size_bytes, int device);

}  // namespace braid::cuda

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "tensor/cuda/cuda_check.h"
#include "tensor/cuda/device_memory.h"

namespace braid::cuda {
namespace {

std::atomic<int> managed_scopes{0};

struct Counter {
  std::atomic<int64_t> bytes{0}, peak{0};
};
std::array<Counter, 64> counters;  // by device

void count(int64_t bytes, int device) noexcept {
  if (device < 0 || device >= static_cast<int>(counters.size())) return;
  Counter& counter = counters[device];
  const int64_t now = counter.bytes += bytes;
  int64_t peak = counter.peak;
  while (now > peak && !counter.peak.compare_exchange_weak(peak, now)) continue;
}

void use_device(int device) {
  if (device < 0 || device >= num_devices()) no_such_device(device, num_devices());
  BRAID_CUDA_CHECK(cudaSetDevice(device));
}

// The driver's functions are looked up at run time, so that programs start where there is no
// driver.
template <typename Function>
Function driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult found_status{};
  BRAID_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &found_status));
  if (found == nullptr) call_failed(__FILE__, __LINE__, name, "the driver does not have it");
  return reinterpret_cast<Function>(found);
}

struct Driver {
  decltype(&cuMemAddressReserve) reserve =
      driver_function<decltype(&cuMemAddressReserve)>("cuMemAddressReserve");
  decltype(&cuMemAddressFree) free =
      driver_function<decltype(&cuMemAddressFree)>("cuMemAddressFree");
  decltype(&cuMemCreate) create = driver_function<decltype(&cuMemCreate)>("cuMemCreate");
  decltype(&cuMemRelease) release = driver_function<decltype(&cuMemRelease)>("cuMemRelease");
  decltype(&cuMemMap) map = driver_function<decltype(&cuMemMap)>("cuMemMap");
  decltype(&cuMemUnmap) unmap = driver_function<decltype(&cuMemUnmap)>("cuMemUnmap");
  decltype(&cuMemSetAccess) set_access =
      driver_function<decltype(&cuMemSetAccess)>("cuMemSetAccess");
  decltype(&cuMemGetAllocationGranularity) granularity =
      driver_function<decltype(&cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity");
  decltype(&cuGetErrorString) error_string =
      driver_function<decltype(&cuGetErrorString)>("cuGetErrorString");
};

const Driver& driver() {
  static const Driver functions;
  return functions;
}

void check_driver(CUresult status, const char* call, int line) {
  if (status == CUDA_SUCCESS) return;
  const char* message = "unknown error";
  driver().error_string(status, &message);
  call_failed(__FILE__, line, call, message);
}
#define BRAID_DRIVER_CHECK(call) check_driver(call, #call, __LINE__)

size_t round_up(size_t size, size_t granularity) {
  return (size + granularity - 1) / granularity * granularity;
}

class MappedMemory : public GrowingMemory {
 public:
  MappedMemory(size_t size_bytes, int device) : device_(device) {
    use_device(device);
    BRAID_CUDA_CHECK(cudaFree(nullptr));  // makes the context
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    size_t granularity = 0;
    BRAID_DRIVER_CHECK(
        driver().granularity(&granularity, &properties_, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    piece_ = round_up(kPieceBytes, granularity);
    reserved_ = round_up(size_bytes, piece_);
    BRAID_DRIVER_CHECK(driver().reserve(&address_, reserved_, 0, 0, 0));
  }

  ~MappedMemory() override {
    cudaSetDevice(device_);
    count(-static_cast<int64_t>(committed_), device_);
    if (committed_ > 0) driver().unmap(address_, committed_);
    for (const CUmemGenericAllocationHandle piece : pieces_) driver().release(piece);
    driver().free(address_, reserved_);
  }

  std::byte* data() const override { return reinterpret_cast<std::byte*>(address_); }
  size_t committed_bytes() const override { return committed_; }

  void commit(size_t size_bytes) override {
    if (size_bytes <= committed_) return;
    BRAID_CUDA_CHECK(cudaSetDevice(device_));
    while (committed_ < size_bytes) {
      if (committed_ + piece_ > reserved_) {
        call_failed(__FILE__, __LINE__, "commit", "more than was reserved");
      }
      CUmemGenericAllocationHandle handle{};
      BRAID_DRIVER_CHECK(driver().create(&handle, piece_, &properties_, 0));
      count(static_cast<int64_t>(piece_), device_);
      pieces_.push_back(handle);
      BRAID_DRIVER_CHECK(driver().map(address_ + committed_, piece_, 0, handle, 0));
      const CUmemAccessDesc access{properties_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
      BRAID_DRIVER_CHECK(driver().set_access(address_ + committed_, piece_, &access, 1));
      committed_ += piece_;
    }
  }

 private:
  int device_;
  CUmemAllocationProp properties_{};
  size_t piece_ = 0;
  size_t reserved_ = 0;
  size_t committed_ = 0;
  CUdeviceptr address_ = 0;
  std::vector<CUmemGenericAllocationHandle> pieces_;
};

class ManagedMemory : public GrowingMemory {
 public:
  ManagedMemory(size_t size_bytes, int device)
      : data_(allocate(size_bytes, device)), size_(size_bytes), device_(device) {}
  ~ManagedMemory() override { release(data_, size_, device_); }
  std::byte* data() const override { return data_; }
  size_t committed_bytes() const override { return size_; }
  void commit(size_t size_bytes) override {
    if (size_bytes > size_) {
      call_failed(__FILE__, __LINE__, "commit", "more than was reserved");
    }
  }

 private:
  std::byte* data_;
  size_t size_;
  int device_;
};

}  // namespace

bool built_in() { return true; }

int num_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // clears it: no driver means no devices
    return 0;
  }
  return count;
}

std::byte* allocate(size_t size_bytes, int device) {
  use_device(device);
  void* data = nullptr;
  if (managed_scopes > 0) {
    BRAID_CUDA_CHECK(cudaMallocManaged(&data, size_bytes));
  } else {
    BRAID_CUDA_CHECK(cudaMalloc(&data, size_bytes));
  }
  count(footprint(static_cast<int64_t>(size_bytes)), device);
  BRAID_CUDA_CHECK(cudaMemset(data, 0, size_bytes));
  BRAID_CUDA_CHECK(cudaDeviceSynchronize());  // other streams may use it at once
  return static_cast<std::byte*>(data);
}

void release(std::byte* data, size_t size_bytes, int device) noexcept {
  cudaSetDevice(device);
  cudaFree(data);
  count(-footprint(static_cast<int64_t>(size_bytes)), device);
}

MemoryUse memory_use(int device) {
  if (device < 0 || device >= static_cast<int>(counters.size())) return {};
  return {counters[device].bytes, counters[device].peak};
}

void reset_peak(int device) noexcept {
  if (device < 0 || device >= static_cast<int>(counters.size())) return;
  counters[device].peak = counters[device].bytes.load();
}

void count_allocation(int64_t size_bytes, int device) noexcept {
  count(size_bytes < 0 ? -footprint(-size_bytes) : footprint(size_bytes), device);
}

DeviceRoom device_room(int device) {
  use_device(device);
  size_t free = 0, total = 0;
  BRAID_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

std::unique_ptr<GrowingMemory> reserve(size_t size_bytes, int device) {
  if (managed_scopes > 0) return std::make_unique<ManagedMemory>(size_bytes, device);
  return std::make_unique<MappedMemory>(size_bytes, device);
}

ManagedMemoryScope::ManagedMemoryScope() { ++managed_scopes; }
ManagedMemoryScope::~ManagedMemoryScope() { --managed_scopes; }

void copy_to_device(std::byte* target, const void* source, size_t size_bytes, int device) {
  BRAID_CUDA_CHECK(cudaSetDevice(device));
  BRAID_CUDA_CHECK(cudaMemcpy(target, source, size_bytes, cudaMemcpyHostToDevice));
  // Of pageable memory the call may return before the copy is done; streams do not wait for it.
  BRAID_CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

void copy_to_host(void* target, const std::byte* source, size_t size_bytes, int device) {
  BRAID_CUDA_CHECK(cudaSetDevice(device));
  BRAID_CUDA_CHECK(cudaMemcpy(target, source, size_bytes, cudaMemcpyDeviceToHost));
}

}  // namespace braid::cuda

#include <cuda_runtime.h>

#include "tensor/cuda/cuda_check.h"
#include "tensor/cuda/device_memory.h"

namespace braid::cuda {

int num_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // clears it: no driver means no devices
    return 0;
  }
  return count;
}

std::byte* allocate(size_t size_bytes, int device) {
  if (device < 0 || device >= num_devices()) no_such_device(device, num_devices());
  BRAID_CUDA_CHECK(cudaSetDevice(device));
  void* data = nullptr;
  BRAID_CUDA_CHECK(cudaMalloc(&data, size_bytes));
  BRAID_CUDA_CHECK(cudaMemset(data, 0, size_bytes));
  return static_cast<std::byte*>(data);
}

void release(std::byte* data, int device) noexcept {
  cudaSetDevice(device);
  cudaFree(data);
}

void copy_to_device(std::byte* target, const void* source, size_t size_bytes, int device) {
  BRAID_CUDA_CHECK(cudaSetDevice(device));
  BRAID_CUDA_CHECK(cudaMemcpy(target, source, size_bytes, cudaMemcpyHostToDevice));
}

void copy_to_host(void* target, const std::byte* source, size_t size_bytes, int device) {
  BRAID_CUDA_CHECK(cudaSetDevice(device));
  BRAID_CUDA_CHECK(cudaMemcpy(target, source, size_bytes, cudaMemcpyDeviceToHost));
}

}  // namespace braid::cuda

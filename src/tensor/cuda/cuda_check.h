#pragma once

// For *.cu files only: pulls in the CUDA runtime.

#include <cuda_runtime.h>

namespace braid::cuda {

// Throws Error. Not inline: nvcc cannot compile fmt's checked format strings.
[[noreturn]] void call_failed(const char* file, int line, const char* call, const char* message);
[[noreturn]] void no_such_device(int device, int num_devices);

}  // namespace braid::cuda

// Throws Error with CUDA's own message, the call and the place unless it succeeds.
#define BRAID_CUDA_CHECK(call)                                                           \
  do {                                                                                   \
    const cudaError_t status = (call);                                                   \
    if (status != cudaSuccess) {                                                         \
      ::braid::cuda::call_failed(__FILE__, __LINE__, #call, cudaGetErrorString(status)); \
    }                                                                                    \
  } while (false)

#pragma once

#include <cstddef>

namespace braid::cuda {

// Memory of CUDA devices. A build without CUDA has the same functions: there are then no devices,
// and the rest throws Error saying so. Calls are synchronous. All throw Error with CUDA's message
// on failure.

// Devices that can be used; 0 also when there is no driver.
int num_devices();

std::byte* allocate(size_t size_bytes, int device);
// Never throws: called from destructors.
void release(std::byte* data, int device) noexcept;

void copy_to_device(std::byte* target, const void* source, size_t size_bytes, int device);
void copy_to_host(void* target, const std::byte* source, size_t size_bytes, int device);

}  // namespace braid::cuda

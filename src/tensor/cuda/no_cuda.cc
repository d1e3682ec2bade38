#include "base/error.h"
#include "tensor/cuda/device_memory.h"

namespace braid::cuda {
namespace {

[[noreturn]] void refuse(int device) {
  throw Error("device cuda:{}: this build has no CUDA backend; configure with the preset 'cuda'",
              device);
}

}  // namespace

int num_devices() { return 0; }
std::byte* allocate(size_t, int device) { refuse(device); }
void release(std::byte*, int) noexcept {}
void copy_to_device(std::byte*, const void*, size_t, int device) { refuse(device); }
void copy_to_host(void*, const std::byte*, size_t, int device) { refuse(device); }

}  // namespace braid::cuda

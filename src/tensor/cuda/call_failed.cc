#include "base/error.h"

namespace braid::cuda {

[[noreturn]] void call_failed(const char* file, int line, const char* call, const char* message) {
  throw Error("{}:{}: {}: {}", file, line, call, message);
}

[[noreturn]] void no_such_device(int device, int num_devices) {
  throw Error("device cuda:{}: there are {} CUDA devices here", device, num_devices);
}

}  // namespace braid::cuda

#include "base/error.h"
#include "benchmark/cuda/device_ceilings.h"

namespace braid::cuda {

Ceilings measure_device_ceilings(int) {
  throw Error("this build has no CUDA backend; configure with the preset 'cuda'");
}

}  // namespace braid::cuda

#pragma once

namespace braid::cuda {

// A value that stays in a register; else what an address is made of is looked up again wherever it
// is needed.
template <typename T>
__device__ __forceinline__ T computed_once(T value) {
  if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(value));
  } else {
    asm volatile("" : "+r"(value));
  }
  return value;
}

}  // namespace braid::cuda

#pragma once

#include <algorithm>
#include <cstdint>

namespace braid::cuda {

// What a matrix library may know of an address: the largest power of two that divides it, at most
// 256.
inline uint32_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return static_cast<uint32_t>(std::min<uintptr_t>(address & -address, 256));
}

}  // namespace braid::cuda

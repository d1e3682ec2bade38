#pragma once

#include <cstdint>

namespace braid::cuda {

// Slots of shared memory in turn, and the parity of their barriers' phase: as each role of a block
// goes through them.
class Ring {
 public:
  __device__ explicit Ring(int slots) : slots_(slots) {}
  __device__ int slot() const { return slot_; }
  __device__ uint32_t parity() const { return parity_; }
  __device__ void advance() {
    if (++slot_ == slots_) slot_ = 0, parity_ ^= 1;
  }

 private:
  int slots_, slot_ = 0;
  uint32_t parity_ = 0;
};

}  // namespace braid::cuda

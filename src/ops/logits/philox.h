#pragma once

#include <array>
#include <cstdint>

#include "ops/logits/draw_math.h"

namespace braid {

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011):
// a bijection of 128-bit counters chosen by a 64-bit key. No state, so a number depends on its
// counter and key alone.
inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                          std::array<uint32_t, 2> key) {
  philox_rounds(counter.data(), key[0], key[1]);
  return counter;
}

// Names the random numbers that one token is drawn with: they depend on its request and position,
// never on batch mates or thread order.
struct SamplingKey {
  uint64_t seed = 0;
  uint64_t request = 0;
  uint64_t position = 0;  // of the token that is drawn, below 2^32
};

// A uniform number for each token of the vocabulary: in (0, 1), an odd multiple of 2^-33.
class UniformByToken {
 public:
  explicit UniformByToken(const SamplingKey& key) : key_(key) {}

  // Cheapest in ascending order of tokens: four neighbours share a block.
  double operator()(int32_t token) {
    const uint32_t block = static_cast<uint32_t>(token) / 4;
    if (block != block_) {
      block_ = block;
      bits_ = philox4x32(
          {static_cast<uint32_t>(key_.position), block, static_cast<uint32_t>(key_.request),
           static_cast<uint32_t>(key_.request >> 32)},
          {static_cast<uint32_t>(key_.seed), static_cast<uint32_t>(key_.seed >> 32)});
    }
    return uniform_of_bits(bits_[static_cast<uint32_t>(token) % 4]);
  }

 private:
  SamplingKey key_;
  uint32_t block_ = ~uint32_t{0};
  std::array<uint32_t, 4> bits_{};
};

}  // namespace braid

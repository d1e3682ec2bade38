#pragma once

#include <array>
#include <cstdint>

namespace braid {

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011):
// a bijection of 128-bit counters chosen by a 64-bit key. No state, so a number depends on its
// counter and key alone.
inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                          std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xd2511f53} * counter[0];
    const uint64_t product1 = uint64_t{0xcd9e8d57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9e3779b9;
    key[1] += 0xbb67ae85;
  }
  return counter;
}

// Names one random number: what a token is drawn with depends on its request and position, never
// on batch mates or thread order.
struct SamplingKey {
  uint64_t seed = 0;
  uint64_t request = 0;
  uint64_t position = 0;  // of the token that is drawn
};

// Uniform in [0, 1), a multiple of 2^-53.
inline double uniform(const SamplingKey& key) {
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  const std::array<uint32_t, 4> bits =
      philox4x32({low(key.position), high(key.position), low(key.request), high(key.request)},
                 {low(key.seed), high(key.seed)});
  return static_cast<double>((uint64_t{bits[1]} << 32 | bits[0]) >> 11) * 0x1p-53;
}

}  // namespace braid

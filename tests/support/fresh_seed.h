#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

namespace braid::testing {

// A new seed for each run, or that of the environment variable BRAID_TEST_SEED.
inline uint64_t fresh_seed() {
  if (const char* text = std::getenv("BRAID_TEST_SEED")) return std::strtoull(text, nullptr, 10);
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// Random numbers for one test; a failure prints how to repeat it.
class FreshRandom {
 public:
  FreshRandom()
      : seed_(fresh_seed()),
        engine_(seed_),
        trace_(__FILE__, __LINE__, "repeat with BRAID_TEST_SEED=" + std::to_string(seed_)) {}

  std::mt19937_64& engine() { return engine_; }
  // Uniform in [low, high].
  int64_t integer(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool coin(double probability = 0.5) { return std::bernoulli_distribution(probability)(engine_); }
  template <typename Container>
  auto pick(const Container& items) {
    return items[static_cast<size_t>(integer(0, static_cast<int64_t>(items.size()) - 1))];
  }

 private:
  uint64_t seed_;
  std::mt19937_64 engine_;
  ::testing::ScopedTrace trace_;
};

}  // namespace braid::testing

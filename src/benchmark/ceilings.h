#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>

#include "base/thread_pool.h"
#include "tensor/profiler.h"

namespace braid {

// What a machine can do at best with a number of threads and an instruction set.
struct Ceilings {
  int threads = 0;
  double read_bytes_per_second = 0;  // all threads, several streams each, huge pages
  // Multiplications and additions, by Arithmetic.
  std::array<double, kNumArithmetics> operations_per_second{};
};

// Best of several short runs on all threads of the pool, with the active instruction set. Takes
// about two seconds and half a gigabyte.
Ceilings measure_ceilings(ThreadPool& pool);

// The time that some work takes at the ceilings, and what it is that takes so long.
struct Bound {
  std::string what;  // "memory", "f32", "bf16" or "int8"
  double seconds = 0;
};
// The longer of moving the weights and states, and computing (the sum over the arithmetics; named
// after the largest share). Activations are not counted: they rarely leave the caches.
Bound bound_of(const Profiler::Entry& work, const Ceilings& ceilings);

// Ceilings kept between runs in a file, by processor, threads and instruction set.
class CeilingCache {
 public:
  // By default in the user's cache folder: $XDG_CACHE_HOME or ~/.cache, braid/ceilings.json; empty
  // if there is none.
  static std::filesystem::path default_path();
  // An empty path keeps nothing. A file that is missing or cannot be read counts as empty.
  explicit CeilingCache(std::filesystem::path path = default_path()) : path_(std::move(path)) {}

  std::optional<Ceilings> find(int threads) const;
  // Replaces what is known of the same key. Throws Error if the file cannot be written.
  void put(const Ceilings& ceilings) const;

 private:
  std::filesystem::path path_;
};

}  // namespace braid

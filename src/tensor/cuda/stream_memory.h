#pragma once

#include <cstdint>

namespace braid::cuda {

// Device memory that a stream takes: for tables and counters, and on first use for matrix
// libraries.
inline constexpr int64_t kStreamTableBytes = int64_t{16} << 20;
inline constexpr int64_t kStreamLibraryBytes = int64_t{32} << 20;

}  // namespace braid::cuda

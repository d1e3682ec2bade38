#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace braid::cuda {

// Fills `size_bytes` of a device's memory, piece by piece of `piece_bytes` (the last may be
// shorter): piece i is what lies at source + starts[i], in the same device's memory. Waits until
// it is done; throws Error as the functions of device_memory.h do.
void copy_pieces(std::byte* target, size_t size_bytes, const std::byte* source,
                 std::span<const int64_t> starts, size_t piece_bytes, int device);

}  // namespace braid::cuda

#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"
#include "tensor/cuda/copy_pieces.h"
#include "tensor/cuda/cuda_check.h"
#include "tensor/cuda/device_memory.h"

namespace braid::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kStoreBytes = 16;

// A thread fills kStoreBytes at a time by units that divide every start, piece and the target.
template <typename Unit>
__global__ void fill(std::byte* target, size_t size_bytes, const std::byte* source,
                     const int64_t* starts, size_t piece_bytes) {
  constexpr int kUnits = kStoreBytes / sizeof(Unit);
  const size_t step = size_t{gridDim.x} * kThreads * kStoreBytes;
  for (size_t at = (size_t{blockIdx.x} * kThreads + threadIdx.x) * kStoreBytes; at < size_bytes;
       at += step) {
    size_t piece = at / piece_bytes;
    size_t skipped = at - piece * piece_bytes;
    const auto* from = reinterpret_cast<const Unit*>(source + starts[piece] + skipped);
    union {
      Unit units[kUnits];
      uint4 whole;
    } out;
    if (skipped + kStoreBytes <= piece_bytes && at + kStoreBytes <= size_bytes) {
      for (int i = 0; i < kUnits; ++i) out.units[i] = from[i];
      if (reinterpret_cast<uintptr_t>(target) % kStoreBytes == 0) {
        *reinterpret_cast<uint4*>(target + at) = out.whole;
        continue;
      }
      for (int i = 0; i < kUnits; ++i) reinterpret_cast<Unit*>(target + at)[i] = out.units[i];
      continue;
    }
    const int units = static_cast<int>(min(size_t{kStoreBytes}, size_bytes - at) / sizeof(Unit));
    for (int i = 0; i < units; ++i) {
      if (skipped >= piece_bytes) {
        skipped -= piece_bytes;
        ++piece;
        from = reinterpret_cast<const Unit*>(source + starts[piece] + skipped);
      }
      reinterpret_cast<Unit*>(target + at)[i] = *from++;
      skipped += sizeof(Unit);
    }
  }
}

template <typename Unit>
void launch_fill(std::byte* target, size_t size_bytes, const std::byte* source,
                 const int64_t* starts, size_t piece_bytes) {
  const size_t blocks = (size_bytes + kThreads * kStoreBytes - 1) / (kThreads * kStoreBytes);
  fill<Unit><<<static_cast<unsigned>(std::min<size_t>(blocks, 1 << 16)), kThreads>>>(
      target, size_bytes, source, starts, piece_bytes);
}

}  // namespace

void copy_pieces(std::byte* target, size_t size_bytes, const std::byte* source,
                 std::span<const int64_t> starts, size_t piece_bytes, int device) {
  if (size_bytes == 0) return;
  BRAID_CHECK(piece_bytes > 0 && starts.size() >= (size_bytes + piece_bytes - 1) / piece_bytes,
              "{} pieces of {} bytes for {}", starts.size(), piece_bytes, size_bytes);
  uint64_t places = reinterpret_cast<uintptr_t>(target) | reinterpret_cast<uintptr_t>(source) |
                    size_bytes | piece_bytes;
  for (const int64_t start : starts) places |= static_cast<uint64_t>(start);
  std::byte* const table = allocate(starts.size_bytes(), device);
  try {
    copy_to_device(table, starts.data(), starts.size_bytes(), device);
    const auto* there = reinterpret_cast<const int64_t*>(table);
    if (places % 4 == 0) {
      launch_fill<uint32_t>(target, size_bytes, source, there, piece_bytes);
    } else if (places % 2 == 0) {
      launch_fill<uint16_t>(target, size_bytes, source, there, piece_bytes);
    } else {
      launch_fill<uint8_t>(target, size_bytes, source, there, piece_bytes);
    }
    BRAID_CUDA_CHECK(cudaGetLastError());
    BRAID_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  } catch (...) {
    release(table, starts.size_bytes(), device);
    throw;
  }
  release(table, starts.size_bytes(), device);
}

}  // namespace braid::cuda

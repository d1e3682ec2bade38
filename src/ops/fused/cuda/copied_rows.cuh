#pragma once

// Rounded rows of a token's experts, brought to shared memory by the copy engine: blocks wait for
// them without holding registers, so that more of them share a multiprocessor.

#include "ops/cuda/async_copy.cuh"
#include "ops/fused/cuda/packed_rows.cuh"

namespace braid::cuda {

// Of shared memory, so that two blocks fit.
inline constexpr int kMostCopiedBytes = 96 << 10;
inline constexpr int kMostCopiedRows = kWarp;
// Threads of a block, and how many blocks are to share a multiprocessor.
inline constexpr int kCopiedThreads = 512, kCopiedBlocks = 3;

// `k` rows of `width`.
inline bool can_copy_rows(Stream& stream, const TensorView& rows, int64_t k, int64_t width) {
  return stream.cuda().overlaps_kernels() && rows.dtype() == DType::kBF16 && width % 8 == 0 &&
         rows.row_stride() % 8 == 0 && reinterpret_cast<uintptr_t>(rows.raw()) % 16 == 0 &&
         k <= kMostCopiedRows && 2 * k * width <= kMostCopiedBytes;
}

// Before a kernel is launched with so much shared memory, of which several blocks are to have
// theirs.
template <auto kKernel>
void allow_copied_rows() {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostCopiedBytes);
  static const cudaError_t preferred = cudaFuncSetAttribute(
      kKernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  BRAID_CUDA_CHECK(allowed);
  BRAID_CUDA_CHECK(preferred);
}

// By the first warp, once inputs are there; lane i < k has a row's place and where it belongs among
// the k. to: [k, width] in shared memory, at a multiple of 16 bytes. `arrived`: other warps may
// wait for it after a barrier of the block.
__device__ __forceinline__ void begin_copying_rows(Rows<const uint16_t> rows, int k, int width,
                                                   int place, int rank, uint16_t* to,
                                                   uint64_t& arrived) {
  const uint32_t barrier = shared_address(&arrived);
  if (threadIdx.x == 0) {
    init_barrier(barrier, 1);
    publish_barriers();
  }
  __syncwarp();
  if (threadIdx.x == 0) arrive_and_expect(barrier, 2 * k * width);
  publish_global_to_copies();
  __syncwarp();
  if (static_cast<int>(threadIdx.x) < k) {
    stream_bytes(shared_address(to + rank * width), rows[place], 2 * width, barrier);
  }
}

}  // namespace braid::cuda

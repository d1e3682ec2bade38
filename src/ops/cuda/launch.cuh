#pragma once

// What the .cu files of all ops share: launching, reductions, views of rows.

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "tensor/cuda/cuda_check.h"
#include "tensor/cuda/stream_state.h"
#include "tensor/stream.h"
#include "tensor/tensor_view.h"

namespace braid::cuda {

inline constexpr int kWarp = 32;

template <typename T>
__host__ __device__ constexpr T ceil_divide(T a, T b) {
  return (a + b - 1) / b;
}

// Queues a kernel. Nothing happens for an empty grid. Kernels may run before the one in front of
// them has finished: each must call wait_for_inputs() before it touches what an earlier one of the
// stream reads or writes.
template <typename... Parameters, typename... Arguments>
void launch(Stream& stream, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            size_t shared_bytes, Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.cuda().handle();
  config.attrs = &overlap;
  config.numAttrs = stream.cuda().overlaps_kernels() ? 1 : 0;
  BRAID_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

// Waits until the kernels in front are done and their results can be seen. Once all blocks have
// come so far, the next kernel is launched: it may begin with what does not depend on this one. Not
// earlier, or a whole chain of kernels that wait would sit on the multiprocessors and leave the one
// that works unevenly spread over them.
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Before wait_for_inputs(), of kernels that are short and take few multiprocessors: the next one
// may begin as soon as all blocks of this one have, while those in front still run, and has its
// first weights by the time this one is done. What it reads before it waits must be constant or of
// earlier steps; ops that read more than that check StreamState::next_begins_ahead().
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// The same of kernels with a block for each token: prompts gain nothing.
__device__ __forceinline__ void let_next_begin_if_few() {
  constexpr int kFewTokens = 64;
  if (gridDim.x <= kFewTokens) let_next_begin();
}

// Rows of a view, as kernels take them.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
  __device__ T* operator[](int64_t row) const { return data + row * stride; }
};
template <typename T>
Rows<T> rows_of(const TensorView& view) {
  return {view.data<std::remove_const_t<T>>(), view.row_stride()};
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  }
  return x;
}

// The sum over a block of up to 1024 threads, for all of them; the order depends on the block's
// size alone.
__device__ __forceinline__ float block_sum(float x) {
  __shared__ float partial[kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int num_warps = (blockDim.x + kWarp - 1) / kWarp;
  x = warp_sum(x);
  if (num_warps == 1) return x;
  __syncthreads();  // of an earlier call
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return warp_sum(lane < num_warps ? partial[lane] : 0);
}

}  // namespace braid::cuda

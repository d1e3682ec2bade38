#pragma once

// Inputs of products in bfloat16, written by the kernel that computes them.

#include <cuda_bf16.h>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/row_vectors.cuh"
#include "ops/linear/cuda/products.h"

namespace braid::cuda {

// Elements [i, i + 4) of a row, rounded.
__device__ __forceinline__ void store_rounded(uint16_t* row, int i, float4 v) {
  const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(v.x, v.y),
                                   __floats2bfloat162_rn(v.z, v.w)};
  *reinterpret_cast<uint2*>(row + i) = *reinterpret_cast<const uint2*>(pairs);
}

// Elements [i, i + 4) of a row of rounded ones, at a multiple of 8 bytes.
__device__ __forceinline__ float4 load_rounded(const uint16_t* row, int i) {
  const uint2 v = *reinterpret_cast<const uint2*>(row + i);
  return {__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u),
          __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u)};
}
inline Rows<const uint16_t> rounded_rows_of(const TensorView& view) {
  return {static_cast<const uint16_t*>(view.raw()), view.row_stride()};
}
// load4() of rows of either type; rounded ones are aligned.
template <bool kAligned>
__device__ __forceinline__ float4 load4_of(const float* row, int i, int width) {
  return load4<kAligned>(row, i, width);
}
template <bool kAligned>
__device__ __forceinline__ float4 load4_of(const uint16_t* row, int i, int width) {
  static_assert(kAligned);
  return i < width ? load_rounded(row, i) : float4{0, 0, 0, 0};
}

// Room for rows of `cols` bfloat16 that end in zeros, as the products take them.
struct PackedRows {
  PackedRows() = default;
  PackedRows(Workspace& workspace, int64_t rows, int64_t cols)
      : cols(cols),
        padded(ceil_divide<int64_t>(cols, kPackedColumns) * kPackedColumns),
        all(workspace.take(DType::kBF16, {rows, padded})) {}
  // In `room` of that size.
  PackedRows(const TensorView& room, int64_t cols) : cols(cols), padded(room.dim(1)), all(room) {}

  Rows<uint16_t> rows() const { return {static_cast<uint16_t*>(all.raw()), padded}; }
  // x: of the input's shape; not read by products.
  LinearInput input(const TensorView& x) const {
    LinearInput input;
    input.precision = ActivationPrecision::kBF16;
    input.x = x;
    input.packed = all.columns(0, cols + cols % 2);
    return input;
  }

  int64_t cols = 0;
  int64_t padded = 0;
  TensorView all;
};

}  // namespace braid::cuda

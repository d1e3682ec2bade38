#pragma once

// Inputs of int8 codes with one scale a token (ops/linear/cuda/int8_products.h), written by the
// kernel that computes them.

#include "ops/cuda/int8.cuh"
#include "ops/cuda/row_vectors.cuh"
#include "ops/fused/cuda/packed_rows.cuh"
#include "ops/linear/cuda/int8_products.h"

namespace braid::cuda {

// The largest over a block of up to 1024 threads, for all of them.
__device__ __forceinline__ uint32_t block_max(uint32_t x) {
  __shared__ uint32_t partial[kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int num_warps = (blockDim.x + kWarp - 1) / kWarp;
  x = warp_max(x);
  if (num_warps == 1) return x;
  __syncthreads();  // of an earlier call
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return warp_max(lane < num_warps ? partial[lane] : 0u);
}

// Where kernels write codes.
struct TokenCodeRows {
  Rows<int8_t> codes;
  float* scales;
  Rows<uint16_t> packed;  // bfloat16 of the same, padded with zeros; null: not wanted

  // A block's row of `width`: element 4 · (j · blockDim.x + threadIdx.x) + n is v[j][n], zero
  // beyond the width.
  template <int kVectors>
  __device__ void store(int64_t row, const float4 (&v)[kVectors], int width, int padded) const {
    store(row, v, width, padded, threadIdx.x, blockDim.x, block_max(largest_of(v)));
  }
  // The same of a warp's row.
  template <int kVectors>
  __device__ void store_by_warp(int64_t row, const float4 (&v)[kVectors], int width,
                                int padded) const {
    store(row, v, width, padded, threadIdx.x % kWarp, kWarp, warp_max(largest_of(v)));
  }

 private:
  template <int kVectors>
  __device__ static uint32_t largest_of(const float4 (&v)[kVectors]) {
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) largest = max(largest, magnitude(v[j]));
    return largest;
  }
  template <int kVectors>
  __device__ void store(int64_t row, const float4 (&v)[kVectors], int width, int padded, int thread,
                        int threads, uint32_t largest) const {
    const Int8Scale scale = int8_scale(largest);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int i = 4 * (j * threads + thread);
      if (i < width) {
        const int place = i / 32 * 32 + i % 8 * 4 + i % 32 / 8 * 4;
        *reinterpret_cast<uint32_t*>(codes[row] + place) = int8_codes(v[j], scale.inverse);
      }
      if (packed.data != nullptr && i < padded) store_rounded(packed[row], i, v[j]);
    }
    if (thread == 0) scales[row] = scale.scale;
  }
};

// Room for an input of codes, and of bfloat16 if other weights read it, too.
struct TokenCodes {
  TokenCodes(Workspace& workspace, int64_t rows, int64_t cols, bool with_packed)
      : codes(workspace.take(DType::kI8, {rows, cols})),
        scales(workspace.take(DType::kF32, {rows})) {
    if (with_packed) packed = PackedRows(workspace, rows, cols);
  }
  // In room for codes and scales.
  TokenCodes(const TensorView& codes, const TensorView& scales, const PackedRows& packed)
      : codes(codes), scales(scales), packed(packed) {}

  TokenCodeRows rows() const {
    TokenCodeRows rows{rows_of<int8_t>(codes), scales.data<float>(), {nullptr, 0}};
    if (packed.cols > 0) rows.packed = packed.rows();
    return rows;
  }
  // x: of the input's shape; not read by products.
  LinearInput input(const TensorView& x) const {
    LinearInput input;
    if (packed.cols > 0) input = packed.input(x);
    input.precision = ActivationPrecision::kInt8;
    input.x = x;
    input.token_codes = codes;
    input.token_packed = codes;
    input.token_scales = scales;
    return input;
  }

  TensorView codes, scales;
  PackedRows packed;
};

}  // namespace braid::cuda

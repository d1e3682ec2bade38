#pragma once

// Rows of floats as kernels take them, four neighbouring elements at a time.

#include "ops/cuda/launch.cuh"

namespace braid::cuda {

// Whether all rows of a view may be read and written by 16 bytes.
inline bool rows_are_aligned(const TensorView& view) {
  int64_t width = 1;
  for (int i = 1; i < view.rank(); ++i) width *= view.dim(i);
  return view.empty() || (reinterpret_cast<uintptr_t>(view.raw()) % 16 == 0 && width % 4 == 0 &&
                          (view.row_stride() % 4 == 0 || view.dim(0) == 1));
}
template <typename... Views>
bool rows_are_aligned(const TensorView& first, const Views&... others) {
  return rows_are_aligned(first) && rows_are_aligned(others...);
}

// Elements [i, i + 4) of a row of `width`; beyond it zeros. kAligned: width and the row's address
// are multiples of four elements.
template <bool kAligned>
__device__ __forceinline__ float4 load4(const float* row, int i, int width) {
  if constexpr (kAligned) {
    return i < width ? *reinterpret_cast<const float4*>(row + i) : float4{0, 0, 0, 0};
  } else {
    float4 v{0, 0, 0, 0};
    if (i < width) v.x = row[i];
    if (i + 1 < width) v.y = row[i + 1];
    if (i + 2 < width) v.z = row[i + 2];
    if (i + 3 < width) v.w = row[i + 3];
    return v;
  }
}
template <bool kAligned>
__device__ __forceinline__ void store4(float* row, int i, int width, float4 v) {
  if constexpr (kAligned) {
    if (i < width) *reinterpret_cast<float4*>(row + i) = v;
  } else {
    if (i < width) row[i] = v.x;
    if (i + 1 < width) row[i + 1] = v.y;
    if (i + 2 < width) row[i + 2] = v.z;
    if (i + 3 < width) row[i + 3] = v.w;
  }
}

// Calls kernel<true> or kernel<false> through `run(std::bool_constant<...>)`.
template <typename Run>
void with_alignment(bool aligned, const Run& run) {
  if (aligned) {
    run(std::true_type{});
  } else {
    run(std::false_type{});
  }
}

}  // namespace braid::cuda

#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace braid {

// The inner products of quantize/matrix_product.h, per instruction set. A tile of C has
// `tile_rows` rows and `tile_cols` columns; a: [depth][tile_rows], b: [depth][tile_cols], packed.
template <typename T>
struct ProductKernel {
  int tile_rows;
  int tile_cols;
  // c[i · c_stride + j] += alpha · Σ_k a[k][i] b[k][j]
  void (*tile)(int64_t depth, const T* a, const T* b, T alpha, T* c, int64_t c_stride);
};
struct MatrixProductKernels {
  ProductKernel<float> f32;
  ProductKernel<double> f64;
  // y[i] += alpha · x[i]
  void (*add_scaled)(int64_t count, float alpha, const float* x, float* y);
};
inline constexpr int kMaxProductTileRows = 12;
inline constexpr int kMaxProductTileCols = 32;

BRAID_DECLARE_KERNELS(MatrixProductKernels, kMatrixProductKernels)

}  // namespace braid

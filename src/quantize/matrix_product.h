#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace braid {

// C += alpha · A · B for large matrices, on the CPU. A: [rows, depth], B: [depth, cols], both with
// any strides (counted in elements); C: [rows, cols], rows c_stride apart.
template <typename T>
struct MatrixProduct {
  int64_t rows = 0, cols = 0, depth = 0;
  const T* a = nullptr;
  int64_t a_row_stride = 0, a_depth_stride = 1;
  const T* b = nullptr;
  int64_t b_depth_stride = 0, b_col_stride = 1;
  T* c = nullptr;
  int64_t c_stride = 0;
  T alpha = 1;

  // Which parts of C are wanted: others may or may not be added to.
  enum class Part { kAll, kUpper, kLower };
  Part part = Part::kAll;
  // What is known to be zero and passed over: above the diagonal of A, or of B.
  bool a_lower = false, b_lower = false;
};

// Each element of C is summed in an order that depends on `depth` alone. C may be neither A nor B.
void add_product(ThreadPool& pool, const MatrixProduct<float>& product);
void add_product(ThreadPool& pool, const MatrixProduct<double>& product);

// y[i] += alpha · x[i]
void add_scaled(int64_t count, float alpha, const float* x, float* y);

}  // namespace braid

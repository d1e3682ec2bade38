#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/stream.h"

namespace braid::cuda {

enum class ProductType {
  kBF16,  // of A and B; C is float32, and so are sums
  kF32,   // by the ordinary units, rounded as float32 is
  kF64,
};

// C = alpha · A·B + beta · C of large matrices in the stream's device memory. A: [rows, depth], B:
// [depth, cols], C: [rows, cols]; rows are contiguous and lie a stride apart (in elements).
// Transposed: A is stored [depth, rows], B [cols, depth].
struct DeviceProduct {
  ProductType type = ProductType::kF32;
  int64_t rows = 0, cols = 0, depth = 0;
  const void* a = nullptr;
  int64_t a_stride = 0;
  bool a_transposed = false;
  const void* b = nullptr;
  int64_t b_stride = 0;
  bool b_transposed = false;
  void* c = nullptr;
  int64_t c_stride = 0;
  double alpha = 1, beta = 0;
};

// By the matrix library. The order of sums is its own, for a shape always the same.
void multiply(Stream& stream, const DeviceProduct& product);

}  // namespace braid::cuda

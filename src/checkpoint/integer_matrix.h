#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "quant/weight.h"

namespace braid {

// A matrix (or stack of matrices, row after row) of integer codes that a checkpoint stores in parts
// of its own: w[r, c] = scale[r, g] · (code[r, c] − zero[r, g]), where g = group_of[c].
struct IntegerMatrix {
  // Rows as they are read. codes: [count, cols]; scales and zeros: [count, groups].
  struct Rows {
    std::vector<uint8_t> codes;
    std::vector<float> scales;
    std::vector<int> zeros;
  };

  Shape shape;  // [rows, cols] or [matrices, rows, cols]
  int bits = 4;
  int64_t groups = 1;
  std::vector<int32_t> group_of;  // [cols]
  bool symmetric = true;          // all zeros are half of the codes' range
  bool bf16_scales = true;
  std::function<void(int64_t first, int64_t count, Rows& rows)> read;  // thread-safe
};

// The format that holds the matrix exactly, in blocks as large as its groups allow: w4 formats for
// 4 bits, w8c for 8 bits with one scale a row; float32 for all others.
const QuantFormat& exact_format(const IntegerMatrix& matrix);

// The matrix in a format that exact_format() gives for it, or the asymmetric one beside that.
Weight to_weight(const IntegerMatrix& matrix, const QuantFormat& format);

}  // namespace braid

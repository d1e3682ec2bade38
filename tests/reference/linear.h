#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/linear/linear.h"

namespace braid::reference {

// A weight matrix expanded to float32, row after row.
inline std::vector<float> expand(const Weight& w) {
  const int64_t rows = w.shape.num_elements() / w.cols();
  std::vector<float> values(static_cast<size_t>(rows * w.cols()));
  for (int64_t r = 0; r < rows; ++r) {
    dequantize(*w.format, w.row(r), w.cols(), values.data() + r * w.cols());
  }
  return values;
}

// The scale of an int8 input, for weights of a format.
inline double input_scale(const LinearInput& input, const QuantFormat& format, int64_t token,
                          int64_t column) {
  return format.has_row_header() ? input.token_scales.data<float>()[token]
                                 : input.scales.row<float>(token)[column / 32];
}

// The inputs that a LinearInput stands for to weights of a format, in double.
inline std::vector<double> rounded_inputs(const LinearInput& input, bool int8,
                                          const QuantFormat& format) {
  const int64_t tokens = input.x.dim(0), cols = input.x.dim(1);
  std::vector<double> values(static_cast<size_t>(tokens * cols));
  for (int64_t t = 0; t < tokens; ++t) {
    const TensorView& codes = format.has_row_header() ? input.token_codes : input.codes;
    for (int64_t c = 0; c < cols; ++c) {
      values[t * cols + c] = int8 ? input_scale(input, format, t, c) * codes.row<int8_t>(t)[c]
                             : input.packed.rank() == 2
                                 ? double{to_float(input.packed.row<BFloat16>(t)[c])}
                                 : double{input.x.row<float>(t)[c]};
    }
  }
  return values;
}

struct Dot {
  double value = 0;
  double magnitude = 0;  // Σ |w · x|
};
inline Dot dot(const float* w, const double* x, int64_t cols) {
  Dot sum;
  for (int64_t c = 0; c < cols; ++c) {
    const double product = double{w[c]} * x[c];
    sum.value += product;
    sum.magnitude += std::fabs(product);
  }
  return sum;
}

}  // namespace braid::reference

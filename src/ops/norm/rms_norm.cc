#include "ops/norm/rms_norm.h"

#include "base/check.h"
#include "ops/cpu/split.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/norm/rms_norm_kernels.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

using RowKernel = void (*)(const float*, const float*, float, int64_t, float*);
using DeviceOp = void (*)(Stream&, const TensorView&, const TensorView&, float, const TensorView&);

// Squares and their sum, then two factors and what else is asked; `moved` floats an element.
OpWork norm_work(const TensorView& x, int moved, int operations) {
  const double elements = static_cast<double>(x.num_elements());
  return {.activation_bytes = 4 * moved * elements, .operations = operations * elements};
}

void run_rows(Stream& stream, RowKernel kernel, DeviceOp device_op, const TensorView& x,
              const TensorView& weight, float epsilon, const TensorView& y) {
  BRAID_CHECK(x.rank() == 2 || x.rank() == 3, "x {}", to_string(x.shape()));
  BRAID_CHECK(x.shape() == y.shape(), "x {}, output {}", to_string(x.shape()),
              to_string(y.shape()));
  const int64_t width = x.dim(-1);
  BRAID_CHECK(weight.empty() || (weight.rank() == 1 && weight.dim(0) == width),
              "weight {} for width {}", to_string(weight.shape()), width);
  if (x.empty()) return;
  if (!stream.is_cpu()) return device_op(stream, x, weight, epsilon, y);
  const float* gains = weight.empty() ? nullptr : weight.data<float>();
  const int64_t heads = x.rank() == 3 ? x.dim(1) : 1;
  split_rows(stream, x.dim(0), heads * width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = x.row<float>(row);
      float* to = y.row<float>(row);
      for (int64_t head = 0; head < heads; ++head) {
        kernel(from + head * width, gains, epsilon, width, to + head * width);
      }
    }
  });
}

}  // namespace

void rms_norm(Stream& stream, const TensorView& x, const TensorView& weight, float epsilon,
              const TensorView& y) {
  const OpScope op(stream, "rms_norm", [&] { return norm_work(x, 2, 4); });
  run_rows(stream, BRAID_KERNELS(kRmsNormKernels).norm, cuda::rms_norm, x, weight, epsilon, y);
}

void add_rms_norm(Stream& stream, const TensorView& x, const TensorView& weight, float epsilon,
                  const TensorView& residual) {
  const OpScope op(stream, "add_rms_norm", [&] { return norm_work(x, 3, 5); });
  run_rows(stream, BRAID_KERNELS(kRmsNormKernels).add_norm, cuda::add_rms_norm, x, weight, epsilon,
           residual);
}

void gated_rms_norm(Stream& stream, const TensorView& x, const TensorView& gate,
                    const TensorView& weight, float epsilon, const TensorView& y) {
  BRAID_CHECK(x.rank() == 3 && x.shape() == gate.shape() && x.shape() == y.shape(),
              "x {}, gate {}, output {}", to_string(x.shape()), to_string(gate.shape()),
              to_string(y.shape()));
  const int64_t heads = x.dim(1);
  const int64_t width = x.dim(2);
  BRAID_CHECK(weight.shape() == Shape({width}), "weight {} for width {}", to_string(weight.shape()),
              width);
  if (x.empty()) return;
  const OpScope op(stream, "gated_rms_norm", [&] { return norm_work(x, 3, 6); });
  if (!stream.is_cpu()) return cuda::gated_rms_norm(stream, x, gate, weight, epsilon, y);
  const float* gains = weight.data<float>();
  const auto kernel = BRAID_KERNELS(kRmsNormKernels).gated_norm;
  split_rows(stream, x.dim(0), heads * width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < heads * width; i += width) {
        kernel(x.row<float>(row) + i, gate.row<float>(row) + i, gains, epsilon, width,
               y.row<float>(row) + i);
      }
    }
  });
}

}  // namespace braid

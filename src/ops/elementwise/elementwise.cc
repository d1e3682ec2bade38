#include "ops/elementwise/elementwise.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/cpu/split.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/elementwise/elementwise_kernels.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

void check_same(const TensorView& a, const TensorView& b) {
  BRAID_CHECK(a.rank() == 2 && a.shape() == b.shape(), "shapes {} and {}", to_string(a.shape()),
              to_string(b.shape()));
}

// `moved` floats and about `operations` an element.
OpWork work(int64_t elements, int moved, int operations) {
  return {.activation_bytes = 4.0 * static_cast<double>(moved * elements),
          .operations = static_cast<double>(operations * elements)};
}

}  // namespace

void activate_and_multiply(Stream& stream, Activation activation, const TensorView& gate,
                           const TensorView& up, const TensorView& y) {
  switch (activation) {
    case Activation::kGeluTanh:
      return gelu_tanh_mul(stream, gate, up, y);
    case Activation::kSilu:
      return silu_mul(stream, gate, up, y);
  }
}

void gelu_tanh_mul(Stream& stream, const TensorView& gate, const TensorView& up,
                   const TensorView& y) {
  check_same(gate, up);
  check_same(gate, y);
  const OpScope op(stream, "gelu_tanh_mul", [&] { return work(gate.num_elements(), 3, 12); });
  if (!stream.is_cpu()) return cuda::gelu_tanh_mul(stream, gate, up, y);
  const ElementwiseKernels& kernels = BRAID_KERNELS(kElementwiseKernels);
  split_elements(stream, gate.dim(0), gate.dim(1), [&](int64_t row, int64_t begin, int64_t end) {
    kernels.gelu_tanh_mul(gate.row<float>(row) + begin, up.row<float>(row) + begin,
                          y.row<float>(row) + begin, end - begin);
  });
}

void silu_mul(Stream& stream, const TensorView& gate, const TensorView& up, const TensorView& y) {
  check_same(gate, up);
  check_same(gate, y);
  const OpScope op(stream, "silu_mul", [&] { return work(gate.num_elements(), 3, 8); });
  if (!stream.is_cpu()) return cuda::silu_mul(stream, gate, up, y);
  const ElementwiseKernels& kernels = BRAID_KERNELS(kElementwiseKernels);
  split_elements(stream, gate.dim(0), gate.dim(1), [&](int64_t row, int64_t begin, int64_t end) {
    kernels.silu_mul(gate.row<float>(row) + begin, up.row<float>(row) + begin,
                     y.row<float>(row) + begin, end - begin);
  });
}

void sigmoid_mul(Stream& stream, const TensorView& x, const TensorView& gate) {
  check_same(x, gate);
  const OpScope op(stream, "sigmoid_mul", [&] { return work(x.num_elements(), 3, 8); });
  if (!stream.is_cpu()) return cuda::sigmoid_mul(stream, x, gate);
  const ElementwiseKernels& kernels = BRAID_KERNELS(kElementwiseKernels);
  split_elements(stream, x.dim(0), x.dim(1), [&](int64_t row, int64_t begin, int64_t end) {
    kernels.sigmoid_mul(x.row<float>(row) + begin, gate.row<float>(row) + begin, end - begin);
  });
}

void add_sigmoid_scaled(Stream& stream, const TensorView& x, const TensorView& y,
                        const TensorView& gate) {
  check_same(x, y);
  BRAID_CHECK(gate.rank() == 2 && gate.dim(0) == x.dim(0) && gate.dim(1) == 1, "x {}, gate {}",
              to_string(x.shape()), to_string(gate.shape()));
  const OpScope op(stream, "add_sigmoid_scaled", [&] { return work(x.num_elements(), 3, 2); });
  if (!stream.is_cpu()) return cuda::add_sigmoid_scaled(stream, x, y, gate);
  const ElementwiseKernels& kernels = BRAID_KERNELS(kElementwiseKernels);
  split_elements(stream, x.dim(0), x.dim(1), [&](int64_t row, int64_t begin, int64_t end) {
    const double factor = 1 / (1 + std::exp(-double{*gate.row<float>(row)}));
    kernels.add_scaled(x.row<float>(row) + begin, y.row<float>(row) + begin,
                       static_cast<float>(factor), end - begin);
  });
}

void add(Stream& stream, const TensorView& x, const TensorView& y) {
  check_same(x, y);
  const OpScope op(stream, "add", [&] { return work(x.num_elements(), 3, 1); });
  if (!stream.is_cpu()) return cuda::add(stream, x, y);
  const ElementwiseKernels& kernels = BRAID_KERNELS(kElementwiseKernels);
  split_elements(stream, x.dim(0), x.dim(1), [&](int64_t row, int64_t begin, int64_t end) {
    kernels.add(x.row<float>(row) + begin, y.row<float>(row) + begin, end - begin);
  });
}

void scale(Stream& stream, const TensorView& x, float factor) {
  BRAID_CHECK(x.rank() == 2, "x {}", to_string(x.shape()));
  const OpScope op(stream, "scale", [&] { return work(x.num_elements(), 2, 1); });
  if (!stream.is_cpu()) return cuda::scale(stream, x, factor);
  const ElementwiseKernels& kernels = BRAID_KERNELS(kElementwiseKernels);
  split_elements(stream, x.dim(0), x.dim(1), [&](int64_t row, int64_t begin, int64_t end) {
    kernels.scale(x.row<float>(row) + begin, factor, end - begin);
  });
}

void softcap(Stream& stream, const TensorView& x, float cap) {
  BRAID_CHECK(x.rank() == 2 && cap > 0, "x {}, cap {}", to_string(x.shape()), cap);
  const OpScope op(stream, "softcap", [&] { return work(x.num_elements(), 2, 10); });
  if (!stream.is_cpu()) return cuda::softcap(stream, x, cap);
  const ElementwiseKernels& kernels = BRAID_KERNELS(kElementwiseKernels);
  split_elements(stream, x.dim(0), x.dim(1), [&](int64_t row, int64_t begin, int64_t end) {
    kernels.softcap(x.row<float>(row) + begin, cap, end - begin);
  });
}

void gather_rows(Stream& stream, const TensorView& x, const IndexList& rows, const TensorView& y) {
  BRAID_CHECK(x.rank() == 2 && y.rank() == 2 && x.dim(1) == y.dim(1) && y.dim(0) == rows.size(),
              "{} rows of {} into {}", rows.size(), to_string(x.shape()), to_string(y.shape()));
  const OpScope op(stream, "gather_rows", [&] { return work(y.num_elements(), 2, 0); });
  if (!stream.is_cpu()) return cuda::gather_rows(stream, x, rows, y);
  const int64_t width = x.dim(1);
  const std::span<const int32_t> from = rows.on_host();
  split_elements(stream, y.dim(0), width, [&](int64_t row, int64_t begin, int64_t end) {
    BRAID_CHECK(from[row] >= 0 && from[row] < x.dim(0), "row {} of {}", from[row], x.dim(0));
    std::memcpy(y.row<float>(row) + begin, x.row<float>(from[row]) + begin,
                static_cast<size_t>(end - begin) * sizeof(float));
  });
}

}  // namespace braid

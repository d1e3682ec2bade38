#include <type_traits>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/row_vectors.cuh"
#include "ops/elementwise/cuda/activations.cuh"

namespace braid::cuda {
namespace {

constexpr int kThreads = 256;

// y = op(a, b) for elements; a block takes one part of one row. y may be a or b.
template <bool kAligned, typename Op>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(Rows<const float> a, Rows<const float> b, Rows<float> y, int width, int parts,
                   Op op) {
  wait_for_inputs();
  const int row = blockIdx.x / parts;
  const int i = 4 * ((blockIdx.x % parts) * kThreads + threadIdx.x);
  if (i >= width) return;
  op.start(row);
  const float4 u = load4<kAligned>(a[row], i, width);
  const float4 v = load4<kAligned>(b[row], i, width);
  store4<kAligned>(y[row], i, width, {op(u.x, v.x), op(u.y, v.y), op(u.z, v.z), op(u.w, v.w)});
}

template <typename Op>
void combine(Stream& stream, const char* name, const TensorView& a, const TensorView& b,
             const TensorView& y, const Op& op) {
  const int width = static_cast<int>(y.dim(1));
  const int parts = ceil_divide(width, 4 * kThreads);
  const dim3 grid(static_cast<unsigned>(y.dim(0) * parts));
  if (!y.empty()) {
    with_alignment(rows_are_aligned(a, b, y), [&](auto aligned) {
      launch(stream, combine_kernel<decltype(aligned)::value, Op>, grid, kThreads, 0,
             rows_of<const float>(a), rows_of<const float>(b), rows_of<float>(y), width, parts, op);
    });
  }
  stream.cuda().finish_op(name);
}

struct ElementOp {
  __device__ void start(int) {}
};
struct GeluMul : ElementOp {
  __device__ float operator()(float gate, float up) const { return gelu_tanh(gate) * up; }
};
struct SiluMul : ElementOp {
  __device__ float operator()(float gate, float up) const { return silu(gate) * up; }
};
struct SigmoidMul : ElementOp {
  __device__ float operator()(float x, float gate) const { return x * sigmoid(gate); }
};
struct Add : ElementOp {
  __device__ float operator()(float x, float y) const { return x + y; }
};
struct Scale : ElementOp {
  float factor;
  __device__ float operator()(float x, float) const { return x * factor; }
};
struct Softcap : ElementOp {
  float cap;
  __device__ float operator()(float x, float) const { return tanhf(x / cap) * cap; }
};
struct AddSigmoidScaled {
  Rows<const float> gate;
  float factor;
  __device__ void start(int row) {
    factor = static_cast<float>(1 / (1 + exp(-static_cast<double>(*gate[row]))));
  }
  __device__ float operator()(float x, float y) const { return fmaf(factor, y, x); }
};

template <bool kAligned>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(Rows<const float> x, const int32_t* rows, Rows<float> y, int width, int parts) {
  wait_for_inputs();
  const int row = blockIdx.x / parts;
  const int i = 4 * ((blockIdx.x % parts) * kThreads + threadIdx.x);
  if (i >= width) return;
  store4<kAligned>(y[row], i, width, load4<kAligned>(x[rows[row]], i, width));
}

}  // namespace

void gelu_tanh_mul(Stream& stream, const TensorView& gate, const TensorView& up,
                   const TensorView& y) {
  combine(stream, "gelu_tanh_mul", gate, up, y, GeluMul{});
}
void silu_mul(Stream& stream, const TensorView& gate, const TensorView& up, const TensorView& y) {
  combine(stream, "silu_mul", gate, up, y, SiluMul{});
}
void sigmoid_mul(Stream& stream, const TensorView& x, const TensorView& gate) {
  combine(stream, "sigmoid_mul", x, gate, x, SigmoidMul{});
}
void add_sigmoid_scaled(Stream& stream, const TensorView& x, const TensorView& y,
                        const TensorView& gate) {
  combine(stream, "add_sigmoid_scaled", x, y, x, AddSigmoidScaled{rows_of<const float>(gate), 0});
}
void add(Stream& stream, const TensorView& x, const TensorView& y) {
  combine(stream, "add", x, y, x, Add{});
}
void scale(Stream& stream, const TensorView& x, float factor) {
  combine(stream, "scale", x, x, x, Scale{{}, factor});
}
void softcap(Stream& stream, const TensorView& x, float cap) {
  combine(stream, "softcap", x, x, x, Softcap{{}, cap});
}

void gather_rows(Stream& stream, const TensorView& x, const IndexList& rows, const TensorView& y) {
  const int width = static_cast<int>(y.dim(1));
  const int parts = ceil_divide(width, 4 * kThreads);
  const dim3 grid(static_cast<unsigned>(y.dim(0) * parts));
  if (!y.empty()) {
    const int32_t* from = on_device(stream.cuda(), rows);
    with_alignment(rows_are_aligned(x, y), [&](auto aligned) {
      launch(stream, gather_kernel<decltype(aligned)::value>, grid, kThreads, 0,
             rows_of<const float>(x), from, rows_of<float>(y), width, parts);
    });
  }
  stream.cuda().finish_op("gather_rows");
}

}  // namespace braid::cuda

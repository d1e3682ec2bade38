#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"

namespace braid::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void tables_kernel(const int32_t* positions, const float* frequencies, int pairs,
                              int64_t count, Rows<float> cos, Rows<float> sin) {
  wait_for_inputs();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= count) return;
  const int64_t token = index / pairs;
  const int i = static_cast<int>(index % pairs);
  const float angle = __fmul_rn(static_cast<float>(positions[token]), frequencies[i]);
  double s, c;  // float32's functions are off by up to two units in the last place
  sincos(static_cast<double>(angle), &s, &c);
  cos[token][i] = static_cast<float>(c);
  sin[token][i] = static_cast<float>(s);
}

// A thread turns one pair.
__global__ void rope_kernel(Rows<float> x, Rows<const float> cos, Rows<const float> sin, int heads,
                            int head_dim, int pairs, int distance, int64_t count) {
  wait_for_inputs();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= count) return;
  const int i = static_cast<int>(index % pairs);
  const int64_t rest = index / pairs;
  const int64_t token = rest / heads;
  float* head = x[token] + rest % heads * head_dim;
  const float a = head[i], b = head[i + distance], c = cos[token][i], s = sin[token][i];
  // Products are rounded before they are added, as the reference does.
  head[i] = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
  head[i + distance] = __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s));
}

}  // namespace

void rope_tables(Stream& stream, const IndexList& positions, const TensorView& frequencies,
                 const TensorView& cos, const TensorView& sin) {
  const int pairs = static_cast<int>(frequencies.dim(0));
  const int64_t count = positions.size() * pairs;
  launch(stream, tables_kernel, static_cast<unsigned>(ceil_divide<int64_t>(count, kThreads)),
         kThreads, 0, on_device(stream.cuda(), positions), frequencies.data<float>(), pairs, count,
         rows_of<float>(cos), rows_of<float>(sin));
  stream.cuda().finish_op("rope_tables");
}

void rope(Stream& stream, const TensorView& x, const TensorView& cos, const TensorView& sin,
          int64_t pair_distance) {
  const int pairs = static_cast<int>(cos.dim(1));
  const int heads = static_cast<int>(x.dim(1));
  const int64_t count = x.dim(0) * heads * pairs;
  launch(stream, rope_kernel, static_cast<unsigned>(ceil_divide<int64_t>(count, kThreads)),
         kThreads, 0, rows_of<float>(x), rows_of<const float>(cos), rows_of<const float>(sin),
         heads, static_cast<int>(x.dim(2)), pairs, static_cast<int>(pair_distance), count);
  stream.cuda().finish_op("rope");
}

}  // namespace braid::cuda

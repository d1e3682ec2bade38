#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/blocks.cuh"
#include "ops/linear/cuda/products.h"
#include "ops/linear/cuda/tensor_core.cuh"

namespace braid::cuda {
namespace {

__device__ void store4(uint16_t* out, const float* v) {
  *reinterpret_cast<uint2*>(out) = make_uint2(pack_bfloat16(v[0], v[1]), pack_bfloat16(v[2], v[3]));
}
__device__ void store4(float* out, const float* v) {
  *reinterpret_cast<float4*>(out) = make_float4(v[0], v[1], v[2], v[3]);
}

template <FormatId kFormat, typename Out>
__global__ void expand(const uint8_t* weights, int64_t row_bytes, int cols, Out* out) {
  wait_for_inputs();  // for the readers of the memory that is written
  let_next_start();
  const int item = blockIdx.x * blockDim.x + threadIdx.x;
  const int unit = item / 4, quad = item % 4;
  if (unit >= cols / kUnitColumns) return;
  const int64_t row = blockIdx.y;
  float v[8];
  Blocks<kFormat>::expand(Blocks<kFormat>::load(weights + row * row_bytes, unit, quad), unit, quad,
                          v);
  Out* const at = out + row * cols + unit * kUnitColumns + 4 * quad;
  store4(at, v);
  store4(at + 16, v + 4);
}

template <typename Out>
void expand_any(Stream& stream, const Products& products, int first, int count, Out* out) {
  constexpr int kThreads = 128;
  const dim3 grid(ceil_divide(products.cols / kUnitColumns * 4, kThreads), count);
  with_format(products.format, [&](auto format) {
    launch(stream, expand<format(), Out>, grid, dim3(kThreads), 0,
           products.weights + first * products.row_bytes, products.row_bytes, products.cols, out);
  });
}

}  // namespace

void expand_rows(Stream& stream, const Products& products, int first, int count, uint16_t* out) {
  expand_any(stream, products, first, count, out);
}
void expand_rows(Stream& stream, const Products& products, int first, int count, float* out) {
  expand_any(stream, products, first, count, out);
}

}  // namespace braid::cuda

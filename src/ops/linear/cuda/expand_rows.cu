#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/tensor_core.cuh"
#include "ops/linear/cuda/tile_rows.cuh"

namespace braid::cuda {
namespace {

__device__ void store4(uint16_t* out, const float* v) {
  *reinterpret_cast<uint2*>(out) = make_uint2(pack_bfloat16(v[0], v[1]), pack_bfloat16(v[2], v[3]));
}
__device__ void store4(float* out, const float* v) {
  *reinterpret_cast<float4*>(out) = make_float4(v[0], v[1], v[2], v[3]);
}

template <typename Row, typename Out>
__global__ void expand(const uint8_t* weights, int64_t row_bytes, int cols, int first, Out* out) {
  wait_for_inputs();  // for the readers of the memory that is written
  const int item = blockIdx.x * blockDim.x + threadIdx.x;
  const int unit = item / 4, quad = item % 4, units = cols / kUnitColumns;
  if (unit >= units) return;
  const Row row(weights, row_bytes, first + blockIdx.y);
  float v[8];
  Row::expand(load_unit(row, unit, quad, units), unit, quad, v);
  Out* const at = out + static_cast<int64_t>(blockIdx.y) * cols;
  store4(at + Row::column(unit, quad, 0), v);
  store4(at + Row::column(unit, quad, 4), v + 4);
}

template <typename Out>
void expand_any(Stream& stream, const Products& products, int first, int count, Out* out) {
  constexpr int kThreads = 128;
  const dim3 grid(ceil_divide(products.cols / kUnitColumns * 4, kThreads), count);
  with_rows(products.format, products.tiles, [&](auto row) {
    launch(stream, expand<typename decltype(row)::Type, Out>, grid, dim3(kThreads), 0,
           products.weights, products.row_bytes, products.cols, first, out);
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

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/tensor_core.cuh"
#include "ops/linear/cuda/tile_rows.cuh"

namespace braid::cuda {
namespace {

constexpr int kThreads = 128;

__device__ void store4(uint16_t* out, const float* v) {
  *reinterpret_cast<uint2*>(out) = make_uint2(pack_bfloat16(v[0], v[1]), pack_bfloat16(v[2], v[3]));
}
__device__ void store4(float* out, const float* v) {
  *reinterpret_cast<float4*>(out) = make_float4(v[0], v[1], v[2], v[3]);
}
// Eight neighbouring weights.
template <typename Row>
__device__ void store8(uint16_t* out, const typename Row::Raw& raw, int unit, int quad) {
  uint32_t w[4];
  Row::expand_pairs(raw, unit, quad, w);
  *reinterpret_cast<uint4*>(out) = make_uint4(w[0], w[1], w[2], w[3]);
}
template <typename Row>
__device__ void store8(float* out, const typename Row::Raw& raw, int unit, int quad) {
  float v[8];
  Row::expand(raw, unit, quad, v);
  store4(out, v);
  store4(out + 4, v + 4);
}

template <FormatId kFormat, typename Out>
__global__ void expand(const uint8_t* weights, int64_t row_bytes, int cols, int first, Out* out) {
  using Row = FileRow<kFormat>;
  wait_for_inputs();  // for the readers of the memory that is written
  const int item = blockIdx.x * blockDim.x + threadIdx.x;
  const int unit = item / 4, quad = item % 4, units = cols / kUnitColumns;
  if (unit >= units) return;
  const Row row(weights, row_bytes, first + blockIdx.y);
  float v[8];
  Row::expand(row.load(unit, quad), unit, quad, v);
  Out* const at = out + static_cast<int64_t>(blockIdx.y) * cols;
  store4(at + Row::column(unit, quad, 0), v);
  store4(at + Row::column(unit, quad, 4), v + 4);
}

// A block has a panel; a thread takes 16 bytes of codes at a time.
template <FormatId kFormat, typename Out>
__global__ void expand_tiles(const uint8_t* weights, int64_t row_bytes, int cols, int first,
                             int count, Out* out) {
  using Row = TileRow<kFormat>;
  using Layout = TileLayout<kFormat>;
  constexpr int kRuns = Layout::kBits == 4 ? 2 : 1;  // of 32 columns in 16 bytes
  constexpr int kUnitItems = Layout::kCodeBytes / 16;
  wait_for_inputs();
  const int item = blockIdx.x * blockDim.x + threadIdx.x;
  const int unit = item / kUnitItems, place = item % kUnitItems;
  if (unit >= cols / Layout::kUnitCols) return;
  const int lane = place % 32, quad = lane % 4, units = cols / kUnitColumns;
  const int first_unit = unit * (Layout::kUnitCols / kUnitColumns) + place / 64 * kRuns;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = blockIdx.y * kTileRows + place / 32 % 2 * 16 + half * 8 + lane / 4;
    if (row >= count) return;
    const Row from(weights, row_bytes, first + row);
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      store8<Row>(out + static_cast<int64_t>(row) * cols + Row::column(first_unit + run, quad, 0),
                  from.load(first_unit + run, quad, units), first_unit + run, quad);
    }
  }
}

template <typename Out>
void expand_any(Stream& stream, const Products& products, int first, int count, Out* out) {
  if (products.tiles) {
    with_tile_format(products.format, [&](auto format) {
      using Layout = TileLayout<format()>;
      const int items = products.cols / Layout::kUnitCols * (Layout::kCodeBytes / 16);
      launch(stream, expand_tiles<format(), Out>,
             dim3(ceil_divide(items, kThreads), ceil_divide(count, kTileRows)), dim3(kThreads), 0,
             products.weights, products.row_bytes, products.cols, first, count, out);
    });
    return;
  }
  const dim3 grid(ceil_divide(products.cols / kUnitColumns * 4, kThreads), count);
  with_format(products.format, [&](auto format) {
    launch(stream, expand<format(), Out>, grid, dim3(kThreads), 0, products.weights,
           products.row_bytes, products.cols, first, out);
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

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/tile_rows.cuh"
#include "quant/device_tiles.h"

namespace braid::cuda {
namespace {

template <typename Row>
__global__ void gather(const uint8_t* table, int64_t row_bytes, int cols, const int32_t* ids,
                       float scale, Rows<float> y) {
  wait_for_inputs();
  const int item = blockIdx.x * blockDim.x + threadIdx.x;
  const Row row(table, row_bytes, ids[blockIdx.y]);
  float* out = y[blockIdx.y];
  if constexpr (Row::kPlain) {
    if (item < cols) out[item] = scale * row.element(item);
  } else {
    const int unit = item / 4, quad = item % 4, units = cols / kUnitColumns;
    if (unit >= units) return;
    float v[8];
    Row::expand(load_unit(row, unit, quad, units), unit, quad, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[Row::column(unit, quad, i)] = scale * v[i];
  }
}

}  // namespace

void embedding(Stream& stream, const Weight& table, const IndexList& ids, float scale,
               const TensorView& y) {
  const bool tiles = in_tiles(*table.format);
  BRAID_CHECK(tiles || !table.format->panels(), "{} weights on a CUDA device", table.format->name);
  constexpr int kThreads = 128;
  const int cols = static_cast<int>(table.cols());
  const int32_t* const device_ids = on_device(stream.cuda(), ids);
  with_rows(table.format->id, tiles, [&](auto row) {
    using Row = typename decltype(row)::Type;
    const int items = Row::kPlain ? cols : cols / kUnitColumns * 4;
    launch(stream, gather<Row>,
           dim3(ceil_divide(items, kThreads), static_cast<unsigned>(ids.size())), dim3(kThreads), 0,
           reinterpret_cast<const uint8_t*>(table.data), table.row_bytes(), cols, device_ids, scale,
           rows_of<float>(y));
  });
  stream.cuda().finish_op("embedding");
}

}  // namespace braid::cuda

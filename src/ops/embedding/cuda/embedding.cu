#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/blocks.cuh"

namespace braid::cuda {
namespace {

template <FormatId kFormat>
__global__ void gather(const uint8_t* table, int64_t row_bytes, int cols, const int32_t* ids,
                       float scale, Rows<float> y) {
  wait_for_inputs();
  let_next_start();
  const int item = blockIdx.x * blockDim.x + threadIdx.x;
  const uint8_t* row = table + ids[blockIdx.y] * row_bytes;
  float* out = y[blockIdx.y];
  if constexpr (plain_format(kFormat)) {
    if (item < cols) out[item] = scale * Blocks<kFormat>::element(row, item);
  } else {
    const int unit = item / 4, quad = item % 4;
    if (unit >= cols / kUnitColumns) return;
    float v[8];
    Blocks<kFormat>::expand(Blocks<kFormat>::load(row, unit, quad), unit, quad, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out[unit * kUnitColumns + 4 * quad + i % 4 + i / 4 * 16] = scale * v[i];
    }
  }
}

}  // namespace

void embedding(Stream& stream, const Weight& table, const IndexList& ids, float scale,
               const TensorView& y) {
  BRAID_CHECK(!table.format->panels(), "{} weights on a CUDA device", table.format->name);
  constexpr int kThreads = 128;
  const int cols = static_cast<int>(table.cols());
  const int32_t* const device_ids = on_device(stream.cuda(), ids);
  with_format(table.format->id, [&](auto format) {
    const int items = plain_format(format()) ? cols : cols / kUnitColumns * 4;
    launch(stream, gather<format()>,
           dim3(ceil_divide(items, kThreads), static_cast<unsigned>(ids.size())), dim3(kThreads), 0,
           reinterpret_cast<const uint8_t*>(table.data), table.row_bytes(), cols, device_ids, scale,
           rows_of<float>(y));
  });
  stream.cuda().finish_op("embedding");
}

}  // namespace braid::cuda

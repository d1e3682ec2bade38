#include "ops/cuda/launch.cuh"
#include "quantize/cuda/rounding.cuh"

namespace braid::cuda {
namespace {

__global__ void __launch_bounds__(kWarps* kWarp)
    fit_kernel(DeviceRows to, const float* w, const float* importance, bool search) {
  wait_for_inputs();
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (index >= to.rows * to.groups) return;
  const int64_t row = index / to.groups, group = index % to.groups;
  const int64_t first = group * to.grid.group;
  const GroupScale scale = fit_group(to.grid, w + row * to.cols + first,
                                     importance != nullptr ? importance + first : nullptr,
                                     columns_of(to, group), search);
  if (threadIdx.x % kWarp == 0) to.scales[index] = scale;
}

__global__ void code_kernel(DeviceRows to, const float* w) {
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x; c < to.cols; c += blockDim.x) {
    const GroupScale scale = to.scales[row * to.groups + c / to.grid.group];
    to.codes[row * to.cols + c] =
        static_cast<uint8_t>(code_at(to.grid, scale, w[row * to.cols + c]));
  }
}

__global__ void permute_kernel(const float* w, const int32_t* order, int64_t cols, float* out) {
  wait_for_inputs();
  const int64_t row = int64_t{blockIdx.x} * cols;
  for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) out[row + i] = w[row + order[i]];
}

__global__ void add_permuted_kernel(const float* w, const float* x, const int32_t* order,
                                    int64_t cols, float* out) {
  wait_for_inputs();
  const int64_t row = int64_t{blockIdx.x} * cols;
  for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) {
    const int64_t at = row + order[i];
    out[at] = w[at] + x[row + i];
  }
}

// A warp takes a row, each lane every 32nd of its columns in registers.
__global__ void __launch_bounds__(kRoundingWarps* kWarp)
    round_kernel(DeviceRows to, ColumnBlock block) {
  extern __shared__ float shared[];
  float* const factor = shared;  // [kColumns][kColumns]
  float* const row_left = shared + kColumns * kColumns + threadIdx.x / kWarp * kColumns;
  const int count = static_cast<int>(block.count), lane = threadIdx.x % kWarp;
  wait_for_inputs();
  load_square(block.factor + block.first * to.cols + block.first, to.cols, count, factor);
  __syncthreads();
  const int64_t row = int64_t{blockIdx.x} * kRoundingWarps + threadIdx.x / kWarp;
  if (row >= to.rows) return;

  const DeviceGrid& grid = to.grid;
  const int64_t group_columns = grid.group;
  float* const left = block.left + row * to.cols + block.first;
  const bool fits = block.importance != nullptr;
  float w[kPerLane], lost[kPerLane];
  GroupScale scale[kPerLane];
  int32_t original[kPerLane], group[kPerLane];
  uint8_t codes[kPerLane];
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) {
    const int c = lane + k * kWarp;
    w[k] = 0;
    lost[k] = 0;
    codes[k] = 0;
    original[k] = 0;
    group[k] = -1;
    scale[k] = {};
    if (c >= count) continue;
    w[k] = left[c];
    original[k] = block.order[block.first + c];
    group[k] = static_cast<int32_t>(original[k] / group_columns);
    if (!fits || group_columns > kColumns) scale[k] = to.scales[row * to.groups + group[k]];
  }
  // Groups of more than a block are whole rows, which begin with the first column.
  int32_t last_group = -1;
  const bool begun = group_columns > kColumns && block.first > 0;

#pragma unroll
  for (int part = 0; part < kPerLane; ++part) {
#pragma unroll 1
    for (int source = 0; source < kWarp; ++source) {
      const int i = part * kWarp + source;
      if (i >= count) break;
      if (fits && !begun) {
        const int32_t own = __shfl_sync(kAllLanes, group[part], source);
        if (own != last_group) {
          last_group = own;
          const float* from = left;
          if (group_columns <= kColumns) {
            __syncwarp();
#pragma unroll
            for (int k = 0; k < kPerLane; ++k) row_left[lane + k * kWarp] = w[k];
            __syncwarp();
            from = row_left + i;
          }
          const GroupScale found = fit_group(grid, from, block.importance + block.first + i,
                                             columns_of(to, own), block.search);
          if (lane == 0) to.scales[row * to.groups + own] = found;
#pragma unroll
          for (int k = 0; k < kPerLane; ++k) {
            if (group[k] == own) scale[k] = found;
          }
        }
      }
      const int code = code_at(grid, scale[part], w[part]);
      float loss =
          __fdiv_rn(__fsub_rn(w[part], value_at(scale[part], code)), factor[i * kColumns + i]);
      loss = __shfl_sync(kAllLanes, loss, source);
      if (lane == source) {
        codes[part] = static_cast<uint8_t>(code);
        lost[part] = loss;
      }
#pragma unroll
      for (int k = part; k < kPerLane; ++k) {
        const int c = lane + k * kWarp;
        if (c > i) w[k] = fmaf(-loss, factor[i * kColumns + c], w[k]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) {
    const int c = lane + k * kWarp;
    if (c >= count) continue;
    to.codes[row * to.cols + original[k]] = codes[k];
    block.losses[row * block.losses_stride + c] = lost[k];
  }
}

__global__ void loss_kernel(DeviceRows rows, const float* w, float* out) {
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x; c < rows.cols; c += blockDim.x) {
    const int64_t at = row * rows.cols + c;
    const GroupScale scale = rows.scales[row * rows.groups + c / rows.grid.group];
    out[at] = __fsub_rn(w[at], value_at(scale, rows.codes[at]));
  }
}

constexpr size_t kRoundingBytes = (kColumns * kColumns + kRoundingWarps * kColumns) * sizeof(float);

}  // namespace

DeviceGrid device_grid(const RoundingGrid& grid) {
  return {.group = grid.group,
          .low = grid.low,
          .high = grid.high,
          .zero = grid.zero,
          .middle = grid.middle,
          .least_zero = grid.least_zero,
          .scale_type = grid.scale_type,
          .signed_scale = grid.signed_scale};
}

void fit_scales(Stream& stream, const DeviceRows& to, const float* w, const float* importance,
                bool search) {
  launch(stream, fit_kernel,
         static_cast<unsigned>(ceil_divide<int64_t>(to.rows * to.groups, kWarps)), kWarps * kWarp,
         0, to, w, importance, search);
  stream.cuda().finish_op("fit_scales");
}

void round_codes(Stream& stream, const DeviceRows& to, const float* w) {
  launch(stream, code_kernel, static_cast<unsigned>(to.rows), 256, 0, to, w);
  stream.cuda().finish_op("round_codes");
}

void permute_columns(Stream& stream, const float* w, const int32_t* order, int64_t rows,
                     int64_t cols, float* out) {
  launch(stream, permute_kernel, static_cast<unsigned>(rows), 256, 0, w, order, cols, out);
  stream.cuda().finish_op("permute_columns");
}

void add_permuted(Stream& stream, const float* w, const float* x, const int32_t* order,
                  int64_t rows, int64_t cols, float* out) {
  launch(stream, add_permuted_kernel, static_cast<unsigned>(rows), 256, 0, w, x, order, cols, out);
  stream.cuda().finish_op("add_permuted");
}

void round_columns(Stream& stream, const DeviceRows& to, const ColumnBlock& block) {
  BRAID_CHECK(block.count <= kRoundedColumns, "{} columns", block.count);
  BRAID_CUDA_CHECK(cudaFuncSetAttribute(round_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(kRoundingBytes)));
  launch(stream, round_kernel, static_cast<unsigned>(ceil_divide<int64_t>(to.rows, kRoundingWarps)),
         kRoundingWarps * kWarp, kRoundingBytes, to, block);
  stream.cuda().finish_op("round_columns");
}

void take_losses(Stream& stream, const DeviceRows& rows, const float* w, float* out) {
  launch(stream, loss_kernel, static_cast<unsigned>(rows.rows), 256, 0, rows, w, out);
  stream.cuda().finish_op("take_losses");
}

}  // namespace braid::cuda

#include "ops/cuda/launch.cuh"
#include "quantize/cuda/rounding.cuh"

namespace braid::cuda {
namespace {

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

__global__ void scale_kernel(const float* x, int64_t count, float factor, float* y) {
  wait_for_inputs();
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    y[i] = factor * x[i];
  }
}

__global__ void subtract_kernel(const float* x, const float* y, int64_t count, float factor,
                                float* out) {
  wait_for_inputs();
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    out[i] = __fsub_rn(__fmul_rn(factor, x[i]), y[i]);
  }
}

__global__ void centred_kernel(DeviceRows rows, int64_t group, int columns, float* c,
                               int64_t c_stride) {
  wait_for_inputs();
  const int64_t row = blockIdx.x, first = group * rows.grid.group;
  const int zero = rows.scales[row * rows.groups + group].zero;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    c[row * c_stride + i] =
        static_cast<float>(static_cast<int>(rows.codes[row * rows.cols + first + i]) - zero);
  }
}

// A warp takes a row.
__global__ void __launch_bounds__(kWarps* kWarp)
    step_scale_kernel(DeviceRows rows, ScaleStep step, int columns) {
  wait_for_inputs();
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= rows.rows) return;
  const int lane = threadIdx.x % kWarp;
  float* const c = step.c + row * step.c_stride;
  const float* const products = step.products + row * columns;
  float* const slopes = step.slopes + row * rows.cols + step.group * rows.grid.group;
  double slope = 0, curve = 0;
  for (int i = lane; i < columns; i += kWarp) {
    slope += double{c[i]} * slopes[i];
    curve += double{c[i]} * (products[i] + step.added * c[i]);
  }
  slope = warp_sum(slope);
  curve = warp_sum(curve);
  GroupScale* const scale = rows.scales + row * rows.groups + step.group;
  const float old = scale->scale;
  float change = 0;
  if (curve > 0 && old != 0) {
    const float stored = stored_scale(rows.grid, old + static_cast<float>(slope / curve));
    const double d = double{stored} - old;
    // Scales keep their sign; a rounded one may be worse than what was.
    if (stored * old > 0 && d * curve * d < 2 * d * slope) {
      change = static_cast<float>(d);
      __syncwarp();
      if (lane == 0) scale->scale = stored;
    }
  }
  for (int i = lane; i < columns; i += kWarp) {
    const float by = change * c[i];
    slopes[i] -= step.added * by;
    c[i] = by;
  }
}

// A warp takes a row, each lane every 32nd of its columns in registers.
__global__ void __launch_bounds__(kRoundingWarps* kWarp)
    step_code_kernel(DeviceRows rows, CodeStep step) {
  extern __shared__ float hessian[];  // [kColumns][kColumns]
  const int count = static_cast<int>(step.count), lane = threadIdx.x % kWarp;
  wait_for_inputs();
  load_square(step.hessian + step.first * rows.cols + step.first, rows.cols, count, hessian);
  __syncthreads();
  const int64_t row = int64_t{blockIdx.x} * kRoundingWarps + threadIdx.x / kWarp;
  if (row >= rows.rows) return;

  const DeviceGrid& grid = rows.grid;
  const float* const slopes = step.slopes + row * rows.cols + step.first;
  uint8_t* const codes = rows.codes + row * rows.cols + step.first;
  float s[kPerLane], changes[kPerLane];
  GroupScale scale[kPerLane];
  int code[kPerLane];
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) {
    const int c = lane + k * kWarp;
    s[k] = 0;
    changes[k] = 0;
    code[k] = 0;
    scale[k] = {};
    if (c >= count) continue;
    s[k] = slopes[c];
    code[k] = codes[c];
    scale[k] = rows.scales[row * rows.groups + (step.first + c) / grid.group];
  }
  int num_changed = 0;
#pragma unroll
  for (int part = 0; part < kPerLane; ++part) {
#pragma unroll 1
    for (int source = 0; source < kWarp; ++source) {
      const int i = part * kWarp + source;
      if (i >= count) break;
      const float own = hessian[i * kColumns + i];
      if (own == 0) continue;
      float change = 0;
      int found = code[part];
      if (lane == source && scale[part].scale != 0) {
        const float value = value_at(scale[part], code[part]);
        const float best = __fadd_rn(value, __fdiv_rn(s[part], __fadd_rn(own, step.added)));
        found = code_at(grid, scale[part], best);
        if (found != code[part]) change = __fsub_rn(value_at(scale[part], found), value);
      }
      change = __shfl_sync(kAllLanes, change, source);
      const int code_found = __shfl_sync(kAllLanes, found, source);
      const int code_before = __shfl_sync(kAllLanes, code[part], source);
      if (code_found == code_before) continue;
      ++num_changed;
      if (lane == source) {
        code[part] = found;
        changes[part] = change;
      }
#pragma unroll
      for (int k = part; k < kPerLane; ++k) {
        const int c = lane + k * kWarp;
        if (c > i) s[k] = fmaf(-change, hessian[i * kColumns + c], s[k]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) {
    const int c = lane + k * kWarp;
    if (c >= count) continue;
    codes[c] = static_cast<uint8_t>(code[k]);
    step.changes[row * step.changes_stride + c] = changes[k];
  }
  if (lane == 0 && num_changed > 0) atomicAdd(step.num_changed, num_changed);
}

__global__ void dot_kernel(const float* x, const float* y, int64_t cols, double* sums) {
  wait_for_inputs();
  __shared__ double partial[kWarp];
  const int64_t row = int64_t{blockIdx.x} * cols;
  double sum = 0;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) sum += double{x[row + c]} * y[row + c];
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  sum = warp_sum(threadIdx.x < blockDim.x / kWarp ? partial[threadIdx.x] : 0);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

unsigned element_blocks(int64_t count) {
  return static_cast<unsigned>(std::min<int64_t>(ceil_divide<int64_t>(count, 256), 1 << 16));
}

unsigned row_blocks(int64_t rows, int warps) {
  return static_cast<unsigned>(ceil_divide<int64_t>(rows, warps));
}

}  // namespace

void scale_to(Stream& stream, const float* x, int64_t count, float factor, float* y) {
  launch(stream, scale_kernel, element_blocks(count), 256, 0, x, count, factor, y);
  stream.cuda().finish_op("scale_to");
}

void subtract_scaled(Stream& stream, const float* x, const float* y, int64_t count, float factor,
                     float* out) {
  launch(stream, subtract_kernel, element_blocks(count), 256, 0, x, y, count, factor, out);
  stream.cuda().finish_op("subtract_scaled");
}

void take_centred(Stream& stream, const DeviceRows& rows, int64_t group, float* c,
                  int64_t c_stride) {
  launch(stream, centred_kernel, static_cast<unsigned>(rows.rows), 128, 0, rows, group,
         columns_of(rows, group), c, c_stride);
  stream.cuda().finish_op("take_centred");
}

void step_scales(Stream& stream, const DeviceRows& rows, const ScaleStep& step) {
  launch(stream, step_scale_kernel, row_blocks(rows.rows, kWarps), kWarps * kWarp, 0, rows, step,
         columns_of(rows, step.group));
  stream.cuda().finish_op("step_scales");
}

void step_codes(Stream& stream, const DeviceRows& rows, const CodeStep& step) {
  BRAID_CHECK(step.count <= kRoundedColumns, "{} columns", step.count);
  constexpr size_t kBytes = kColumns * kColumns * sizeof(float);
  BRAID_CUDA_CHECK(cudaFuncSetAttribute(
      step_code_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes)));
  launch(stream, step_code_kernel, row_blocks(rows.rows, kRoundingWarps), kRoundingWarps * kWarp,
         kBytes, rows, step);
  stream.cuda().finish_op("step_codes");
}

void row_dots(Stream& stream, const float* x, const float* y, int64_t rows, int64_t cols,
              double* sums) {
  launch(stream, dot_kernel, static_cast<unsigned>(rows), 256, 0, x, y, cols, sums);
  stream.cuda().finish_op("row_dots");
}

}  // namespace braid::cuda

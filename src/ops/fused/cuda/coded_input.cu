#include "ops/cuda/cuda_ops.h"
#include "ops/elementwise/cuda/activations.cuh"
#include "ops/fused/cuda/row_math.cuh"
#include "ops/fused/cuda/token_codes.cuh"
#include "ops/fused/cuda/token_inputs.h"
#include "ops/norm/cuda/rms_norm.cuh"

namespace braid::cuda {
namespace {

constexpr int kMostThreads = 512;  // of rows that take several vectors a thread
constexpr int kGatherThreads = 128;

// What becomes codes. Each gives a block's row as TokenCodeRows::store() takes it.

struct PlainRows {
  Rows<const float> x;

  template <bool kAligned, int kVectors>
  __device__ void load(int width, float4 (&v)[kVectors]) const {
    wait_for_inputs();
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      v[j] = load4<kAligned>(x[blockIdx.x], 4 * (j * blockDim.x + threadIdx.x), width);
    }
  }
};

// As rms_norm() computes them, of more than 512 elements.
struct NormedRows {
  Rows<const float> x;
  const float* weight;
  float epsilon;

  template <bool kAligned, int kVectors>
  __device__ void load(int width, float4 (&v)[kVectors]) const {
    float4 w[kVectors];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int i = 4 * (j * blockDim.x + threadIdx.x);
      w[j] = weight != nullptr ? load4<kAligned>(weight, i, width) : float4{1, 1, 1, 1};
    }
    PlainRows{x}.load<kAligned>(width, v);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) sum += sum_of_squares(v[j]);
    const float factor = inverse_rms(block_sum(sum), width, epsilon);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      v[j] = {__fmul_rn(__fmul_rn(v[j].x, factor), w[j].x),
              __fmul_rn(__fmul_rn(v[j].y, factor), w[j].y),
              __fmul_rn(__fmul_rn(v[j].z, factor), w[j].z),
              __fmul_rn(__fmul_rn(v[j].w, factor), w[j].w)};
    }
  }
};

template <typename F>
struct GatedRows {
  Rows<const float> gate, up;

  template <bool kAligned, int kVectors>
  __device__ void load(int width, float4 (&v)[kVectors]) const {
    const auto one = [f = F()](float a, float b) { return f(a) * b; };
    float4 u[kVectors];
    PlainRows{gate}.load<kAligned>(width, v);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      u[j] = load4<kAligned>(up[blockIdx.x], 4 * (j * blockDim.x + threadIdx.x), width);
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      v[j] = {one(v[j].x, u[j].x), one(v[j].y, u[j].y), one(v[j].z, u[j].z), one(v[j].w, u[j].w)};
    }
  }
};

// As gated_rms_norm() computes them: a warp has a head.
struct GatedNormRows {
  Rows<const float> x, gate;
  const float* weight;
  float epsilon;

  template <bool kAligned, int kVectors>
  __device__ void load(int width, float4 (&v)[kVectors]) const {
    constexpr int kHead = 4 * kWarp;
    const float4 w = load4<kAligned>(weight, 4 * (threadIdx.x % kWarp), kHead);
    PlainRows{x}.load<kAligned>(width, v);
    float4 g[kVectors];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      g[j] = load4<kAligned>(gate[blockIdx.x], 4 * (j * blockDim.x + threadIdx.x), width);
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const float factor = inverse_rms(warp_sum(sum_of_squares(v[j])), kHead, epsilon);
      const auto one = [&](float x, float w, float gate) {
        return __fmul_rn(__fmul_rn(x, factor), w) * silu(gate);
      };
      v[j] = {one(v[j].x, w.x, g[j].x), one(v[j].y, w.y, g[j].y), one(v[j].z, w.z, g[j].z),
              one(v[j].w, w.w, g[j].w)};
    }
  }
};

// A block takes a row.
template <typename Source, bool kAligned, int kVectors>
__global__ void __launch_bounds__(kVectors == 1 ? 1024 : kMostThreads)
    codes_kernel(const __grid_constant__ Source source, int width, int padded,
                 const TokenCodeRows out) {
  float4 v[kVectors];
  source.template load<kAligned>(width, v);
  out.store(blockIdx.x, v, width, padded);
}

// A warp takes a narrow row.
constexpr int kRowWarps = 4, kNarrowVectors = 8, kNarrow = kNarrowVectors * 4 * kWarp;
__global__ void __launch_bounds__(kRowWarps* kWarp)
    narrow_kernel(Rows<const float> x, int rows, int width, int padded, const TokenCodeRows out) {
  wait_for_inputs();
  const int row = blockIdx.x * kRowWarps + threadIdx.x / kWarp;
  if (row >= rows) return;
  float4 v[kNarrowVectors];
#pragma unroll
  for (int j = 0; j < kNarrowVectors; ++j) {
    v[j] = load4<true>(x[row], 4 * (j * kWarp + threadIdx.x % kWarp), width);
  }
  out.store_by_warp(row, v, width, padded);
}

template <typename Source>
LinearInput make_codes(Stream& stream, Workspace& workspace, const Source& source,
                       const TensorView& x, bool aligned, bool with_packed) {
  const TokenCodes codes(workspace, x.dim(0), x.dim(1), with_packed);
  const int width = static_cast<int>(x.dim(1));
  // As many threads as a norm takes, whose order of sums they make.
  const int padded = ceil_divide(width, kPackedColumns) * kPackedColumns;
  BRAID_CHECK(padded <= kMostTokenCodes, "codes for rows of {}", width);
  with_alignment(aligned, [&](auto constant) {
    constexpr bool kAligned = decltype(constant)::value;
    const auto run = [&](auto kernel, int vectors) {
      const int threads = ceil_divide(ceil_divide(padded, 4 * vectors), kWarp) * kWarp;
      launch(stream, kernel, static_cast<unsigned>(x.dim(0)), threads, 0, source, width, padded,
             codes.rows());
    };
    if (padded <= 4096) {
      run(codes_kernel<Source, kAligned, 1>, 1);
    } else {
      run(codes_kernel<Source, kAligned, 8>, 8);
    }
  });
  return codes.input(x);
}

__global__ void __launch_bounds__(kGatherThreads)
    gather_codes(Rows<const int8_t> from, const float* from_scales, const int32_t* rows,
                 Rows<int8_t> to, float* to_scales, int width) {
  wait_for_inputs();
  const int row = rows[blockIdx.y];
  const int i = 16 * (blockIdx.x * kGatherThreads + threadIdx.x);
  if (i == 0) to_scales[blockIdx.y] = from_scales[row];
  if (i >= width) return;
  *reinterpret_cast<uint4*>(to[blockIdx.y] + i) = *reinterpret_cast<const uint4*>(from[row] + i);
}

template <typename F>
LinearInput gated_codes(Stream& stream, Workspace& workspace, const TensorView& gate,
                        const TensorView& up, bool with_packed) {
  const GatedRows<F> source{rows_of<const float>(gate), rows_of<const float>(up)};
  return make_codes(stream, workspace, source, gate, rows_are_aligned(gate, up), with_packed);
}

}  // namespace

LinearInput plain_token_codes(Stream& stream, Workspace& workspace, const TensorView& x,
                              bool with_packed) {
  if (rows_are_aligned(x) && x.dim(1) <= kNarrow) {
    const TokenCodes codes(workspace, x.dim(0), x.dim(1), with_packed);
    const int rows = static_cast<int>(x.dim(0)), width = static_cast<int>(x.dim(1));
    launch(stream, narrow_kernel, static_cast<unsigned>(ceil_divide(rows, kRowWarps)),
           kRowWarps * kWarp, 0, rows_of<const float>(x), rows, width,
           ceil_divide(width, kPackedColumns) * kPackedColumns, codes.rows());
    return codes.input(x);
  }
  return make_codes(stream, workspace, PlainRows{rows_of<const float>(x)}, x, rows_are_aligned(x),
                    with_packed);
}

LinearInput normed_token_codes(Stream& stream, Workspace& workspace, const TensorView& x,
                               const TensorView& weight, float epsilon, bool with_packed) {
  const float* gains = weight.empty() ? nullptr : weight.data<float>();
  const bool aligned = rows_are_aligned(x) && aligned_weights(weight);
  return make_codes(stream, workspace, NormedRows{rows_of<const float>(x), gains, epsilon}, x,
                    aligned, with_packed);
}

LinearInput gated_token_codes(Stream& stream, Workspace& workspace, Activation activation,
                              const TensorView& gate, const TensorView& up, bool with_packed) {
  return with_activation(activation, [&]<typename F>(F) {
    return gated_codes<F>(stream, workspace, gate, up, with_packed);
  });
}

LinearInput sigmoid_gated_token_codes(Stream& stream, Workspace& workspace, const TensorView& gate,
                                      const TensorView& x, bool with_packed) {
  return gated_codes<Sigmoid>(stream, workspace, gate, x, with_packed);
}

LinearInput gated_norm_token_codes(Stream& stream, Workspace& workspace, const TensorView& x,
                                   const TensorView& gate, const TensorView& weight, float epsilon,
                                   bool with_packed) {
  static_assert(kGatedNormWidth == 4 * kWarp);
  const bool aligned = rows_are_aligned(x, gate) && aligned_weights(weight);
  const GatedNormRows source{rows_of<const float>(x), rows_of<const float>(gate),
                             weight.data<float>(), epsilon};
  const LinearInput input = make_codes(
      stream, workspace, source, x.reshape({x.dim(0), x.dim(1) * x.dim(2)}), aligned, with_packed);
  stream.cuda().finish_op("prepare_gated_norm_input");
  return input;
}

LinearInput gather_token_codes(Stream& stream, Workspace& workspace, const LinearInput& x,
                               const TensorView& rows) {
  const int64_t count = rows.num_elements(), width = x.x.dim(1);
  const TokenCodes codes(workspace, count, width, false);
  const dim3 grid(static_cast<unsigned>(ceil_divide<int64_t>(width, 16 * kGatherThreads)),
                  static_cast<unsigned>(count));
  launch(stream, gather_codes, grid, kGatherThreads, 0, rows_of<const int8_t>(x.token_packed),
         x.token_scales.data<float>(), rows.data<int32_t>(), codes.rows().codes,
         codes.rows().scales, static_cast<int>(width));
  stream.cuda().finish_op("gather_token_codes");
  // Only its shape is asked for.
  return codes.input(TensorView(x.x.raw(), DType::kF32, {count, width}, x.x.device()));
}

}  // namespace braid::cuda

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/row_vectors.cuh"
#include "ops/elementwise/cuda/activations.cuh"
#include "ops/fused/cuda/packed_rows.cuh"
#include "ops/fused/cuda/row_math.cuh"
#include "ops/fused/cuda/token_inputs.h"
#include "ops/norm/cuda/rms_norm.cuh"

namespace braid::cuda {
namespace {

constexpr int kGatedThreads = 128;
// Of many tokens: rows of a block, whose loads are on their way together, and threads at most.
constexpr int kGatedRows = 4, kMostGatedThreads = 256;
constexpr int kManyGatedTokens = 256;
constexpr int kMostThreads = 512;

// A block takes a row, each thread kVectors · 4 elements of it in registers. The order of the sum
// is that of rms_norm.
template <bool kAligned, int kVectors>
__global__ void __launch_bounds__(kVectors == 1 ? 1024 : kMostThreads)
    normed_kernel(Rows<const float> x, const float* weight, float epsilon, int width, int padded,
                  Rows<uint16_t> packed) {
  float4 w[kVectors], v[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = 4 * (j * blockDim.x + threadIdx.x);
    w[j] = weight != nullptr ? load4<kAligned>(weight, i, width) : float4{1, 1, 1, 1};
  }
  wait_for_inputs();
  const float* row = x[blockIdx.x];
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    v[j] = load4<kAligned>(row, 4 * (j * blockDim.x + threadIdx.x), width);
  }
#pragma unroll
  for (int j = 0; j < kVectors; ++j) sum += sum_of_squares(v[j]);
  const float factor = inverse_rms(block_sum(sum), width, epsilon);
  uint16_t* out = packed[blockIdx.x];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = 4 * (j * blockDim.x + threadIdx.x);
    if (i >= padded) continue;
    store_rounded(
        out, i,
        {__fmul_rn(__fmul_rn(v[j].x, factor), w[j].x), __fmul_rn(__fmul_rn(v[j].y, factor), w[j].y),
         __fmul_rn(__fmul_rn(v[j].z, factor), w[j].z),
         __fmul_rn(__fmul_rn(v[j].w, factor), w[j].w)});
  }
}

template <bool kAligned, typename F>
__global__ void __launch_bounds__(kGatedThreads)
    gated_kernel(Rows<const float> gate, Rows<const float> up, int width, int padded,
                 Rows<uint16_t> packed) {
  wait_for_inputs();
  const int i = 4 * (blockIdx.x * kGatedThreads + threadIdx.x);
  if (i >= padded) return;
  const float4 g = load4<kAligned>(gate[blockIdx.y], i, width);
  const float4 u = load4<kAligned>(up[blockIdx.y], i, width);
  const auto one = [f = F()](float a, float b) { return f(a) * b; };
  store_rounded(packed[blockIdx.y], i,
                {one(g.x, u.x), one(g.y, u.y), one(g.z, u.z), one(g.w, u.w)});
}

// The same; a block takes the same columns of several rows.
template <typename F>
__global__ void __launch_bounds__(kMostGatedThreads)
    gated_rows_kernel(Rows<const float> gate, Rows<const float> up, int rows, int width, int padded,
                      Rows<uint16_t> packed) {
  wait_for_inputs();
  const int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= padded) return;
  const int first = blockIdx.y * kGatedRows;
  float4 g[kGatedRows], u[kGatedRows];
#pragma unroll
  for (int n = 0; n < kGatedRows; ++n) {
    const int row = min(first + n, rows - 1);
    g[n] = load4<true>(gate[row], i, width);
    u[n] = load4<true>(up[row], i, width);
  }
  const auto one = [f = F()](float a, float b) { return f(a) * b; };
#pragma unroll
  for (int n = 0; n < kGatedRows; ++n) {
    if (first + n >= rows) break;
    store_rounded(
        packed[first + n], i,
        {one(g[n].x, u[n].x), one(g[n].y, u[n].y), one(g[n].z, u[n].z), one(g[n].w, u[n].w)});
  }
}

template <bool kAligned, int kVectors>
void launch_normed(Stream& stream, const TensorView& x, const float* weight, float epsilon,
                   const PackedRows& packed) {
  const int threads =
      ceil_divide(ceil_divide(static_cast<int>(packed.padded), 4 * kVectors), kWarp) * kWarp;
  launch(stream, normed_kernel<kAligned, kVectors>, static_cast<unsigned>(x.dim(0)), threads, 0,
         rows_of<const float>(x), weight, epsilon, static_cast<int>(x.dim(1)),
         static_cast<int>(packed.padded), packed.rows());
}

template <typename F>
LinearInput packed_gated_input(Stream& stream, Workspace& workspace, const TensorView& gate,
                               const TensorView& up) {
  const PackedRows packed(workspace, gate.dim(0), gate.dim(1));
  const int width = static_cast<int>(gate.dim(1)), padded = static_cast<int>(packed.padded);
  if (gate.dim(0) >= kManyGatedTokens && rows_are_aligned(gate, up)) {
    const int vectors = padded / 4, rows = static_cast<int>(gate.dim(0));
    const int parts = ceil_divide(vectors, kMostGatedThreads);
    const int threads = ceil_divide(ceil_divide(vectors, parts), kWarp) * kWarp;
    const dim3 blocks(static_cast<unsigned>(parts),
                      static_cast<unsigned>(ceil_divide(rows, kGatedRows)));
    launch(stream, gated_rows_kernel<F>, blocks, threads, 0, rows_of<const float>(gate),
           rows_of<const float>(up), rows, width, padded, packed.rows());
    return packed.input(gate);
  }
  const dim3 grid(static_cast<unsigned>(ceil_divide(padded, 4 * kGatedThreads)),
                  static_cast<unsigned>(gate.dim(0)));
  with_alignment(rows_are_aligned(gate, up), [&](auto constant) {
    launch(stream, gated_kernel<decltype(constant)::value, F>, grid, kGatedThreads, 0,
           rows_of<const float>(gate), rows_of<const float>(up), width, padded, packed.rows());
  });
  return packed.input(gate);
}

}  // namespace

LinearInput prepare_normed_input(Stream& stream, Workspace& workspace, const TensorView& x,
                                 const TensorView& weight, float epsilon,
                                 const InputRounding& rounding) {
  if (takes_token_codes(stream, rounding, x.dim(1))) {
    const LinearInput input =
        normed_token_codes(stream, workspace, x, weight, epsilon, rounding.scales.per_block);
    stream.cuda().finish_op("prepare_normed_input");
    return input;
  }
  const PackedRows packed(workspace, x.dim(0), x.dim(1));
  const float* gains = weight.empty() ? nullptr : weight.data<float>();
  const bool aligned = rows_are_aligned(x) && aligned_weights(weight) && x.dim(1) % 4 == 0;
  BRAID_CHECK(packed.padded <= 8 * 4 * kMostThreads, "a norm of rows of {}", x.dim(1));
  with_alignment(aligned, [&](auto constant) {
    constexpr bool kAligned = decltype(constant)::value;
    if (packed.padded <= 4096) {
      launch_normed<kAligned, 1>(stream, x, gains, epsilon, packed);
    } else {
      launch_normed<kAligned, 8>(stream, x, gains, epsilon, packed);
    }
  });
  stream.cuda().finish_op("prepare_normed_input");
  return packed.input(x);
}

LinearInput prepare_gated_input(Stream& stream, Workspace& workspace, Activation activation,
                                const TensorView& gate, const TensorView& up,
                                const InputRounding& rounding) {
  const LinearInput input =
      takes_token_codes(stream, rounding, gate.dim(1))
          ? gated_token_codes(stream, workspace, activation, gate, up, rounding.scales.per_block)
          : with_activation(activation, [&]<typename F>(F) {
              return packed_gated_input<F>(stream, workspace, gate, up);
            });
  stream.cuda().finish_op("prepare_gated_input");
  return input;
}

LinearInput prepare_sigmoid_gated_input(Stream& stream, Workspace& workspace,
                                        const TensorView& gate, const TensorView& x,
                                        const InputRounding& rounding) {
  const LinearInput input =
      takes_token_codes(stream, rounding, gate.dim(1))
          ? sigmoid_gated_token_codes(stream, workspace, gate, x, rounding.scales.per_block)
          : packed_gated_input<Sigmoid>(stream, workspace, gate, x);
  stream.cuda().finish_op("prepare_sigmoid_gated_input");
  return input;
}

}  // namespace braid::cuda

#include <type_traits>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/row_vectors.cuh"
#include "ops/elementwise/cuda/activations.cuh"
#include "ops/norm/cuda/rms_norm.cuh"

namespace braid::cuda {
namespace {

constexpr int kWarpRows = 4;  // of a block whose warps have a row each

enum class Kind { kNorm, kAdd, kGated };

// A row is one head of one token.
struct NormArguments {
  Rows<const float> x;
  Rows<const float> gate;  // kGated
  const float* weight;     // or null
  Rows<float> y;
  int width;
  int heads;
  int64_t rows;
  float epsilon;
};

template <Kind kKind>
__device__ __forceinline__ float finish(float x, float factor, float weight, bool weighted,
                                        float old, float gate) {
  float v = __fmul_rn(x, factor);
  if (weighted) v = __fmul_rn(v, weight);
  if constexpr (kKind == Kind::kAdd) v = __fadd_rn(old, v);
  if constexpr (kKind == Kind::kGated) v = v * silu(gate);
  return v;
}

// A warp or a whole block takes a row, each thread kVectors · 4 elements of it in registers.
template <Kind kKind, bool kAligned, int kVectors, bool kWarpPerRow>
__global__ void __launch_bounds__(kWarpPerRow     ? kWarpRows* kWarp
                                  : kVectors == 1 ? 1024
                                                  : 512) norm_kernel(NormArguments args) {
  const int row_threads = kWarpPerRow ? kWarp : blockDim.x;
  const int thread = kWarpPerRow ? threadIdx.x % kWarp : threadIdx.x;
  const int64_t index =
      kWarpPerRow ? static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp
                  : blockIdx.x;
  const bool weighted = args.weight != nullptr;
  float4 weight[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = 4 * (j * row_threads + thread);
    weight[j] = weighted ? load4<kAligned>(args.weight, i, args.width) : float4{1, 1, 1, 1};
  }
  wait_for_inputs();
  if (index >= args.rows) return;
  const int64_t token = index / args.heads;
  const int64_t offset = index % args.heads * args.width;
  const float* x = args.x[token] + offset;
  float* y = args.y[token] + offset;
  float4 v[kVectors], extra[kVectors];
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = 4 * (j * row_threads + thread);
    v[j] = load4<kAligned>(x, i, args.width);
    if constexpr (kKind == Kind::kAdd) extra[j] = load4<kAligned>(y, i, args.width);
    if constexpr (kKind == Kind::kGated) {
      extra[j] = load4<kAligned>(args.gate[token] + offset, i, args.width);
    }
  }
#pragma unroll
  for (int j = 0; j < kVectors; ++j) sum += sum_of_squares(v[j]);
  sum = kWarpPerRow ? warp_sum(sum) : block_sum(sum);
  const float factor = inverse_rms(sum, args.width, args.epsilon);
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = 4 * (j * row_threads + thread);
    const float4 e = extra[j], w = weight[j];
    store4<kAligned>(y, i, args.width,
                     {finish<kKind>(v[j].x, factor, w.x, weighted, e.x, e.x),
                      finish<kKind>(v[j].y, factor, w.y, weighted, e.y, e.y),
                      finish<kKind>(v[j].z, factor, w.z, weighted, e.z, e.z),
                      finish<kKind>(v[j].w, factor, w.w, weighted, e.w, e.w)});
  }
}

template <Kind kKind, bool kAligned, int kVectors>
void launch_rows(Stream& stream, const NormArguments& args) {
  const int needed = ceil_divide(args.width, 4 * kVectors);
  if (needed <= kWarp) {
    launch(stream, norm_kernel<kKind, kAligned, kVectors, true>,
           static_cast<unsigned>(ceil_divide<int64_t>(args.rows, kWarpRows)), kWarpRows * kWarp, 0,
           args);
  } else {
    launch(stream, norm_kernel<kKind, kAligned, kVectors, false>, static_cast<unsigned>(args.rows),
           ceil_divide(needed, kWarp) * kWarp, 0, args);
  }
}

template <Kind kKind>
void run(Stream& stream, const char* name, const TensorView& x, const TensorView& gate,
         const TensorView& weight, float epsilon, const TensorView& y) {
  NormArguments args{.x = rows_of<const float>(x),
                     .weight = weight.empty() ? nullptr : weight.data<float>(),
                     .y = rows_of<float>(y),
                     .width = static_cast<int>(x.dim(-1)),
                     .heads = x.rank() == 3 ? static_cast<int>(x.dim(1)) : 1,
                     .rows = x.dim(0) * (x.rank() == 3 ? x.dim(1) : 1),
                     .epsilon = epsilon};
  if (kKind == Kind::kGated) args.gate = rows_of<const float>(gate);
  BRAID_CHECK(args.width <= 8 * 4 * 512, "a norm of rows of {}", args.width);
  const bool aligned = args.width % 4 == 0 && rows_are_aligned(x, gate, y) &&
                       reinterpret_cast<uintptr_t>(args.weight) % 16 == 0;
  with_alignment(aligned, [&](auto constant) {
    constexpr bool kAligned = decltype(constant)::value;
    if (args.width <= 128) {
      launch_rows<kKind, kAligned, 1>(stream, args);
    } else if (args.width <= 256) {
      launch_rows<kKind, kAligned, 2>(stream, args);
    } else if (args.width <= 512) {
      launch_rows<kKind, kAligned, 4>(stream, args);
    } else if (args.width <= 4096) {
      launch_rows<kKind, kAligned, 1>(stream, args);
    } else {
      launch_rows<kKind, kAligned, 8>(stream, args);
    }
  });
  stream.cuda().finish_op(name);
}

}  // namespace

void rms_norm(Stream& stream, const TensorView& x, const TensorView& weight, float epsilon,
              const TensorView& y) {
  run<Kind::kNorm>(stream, "rms_norm", x, TensorView(), weight, epsilon, y);
}
void add_rms_norm(Stream& stream, const TensorView& x, const TensorView& weight, float epsilon,
                  const TensorView& residual) {
  run<Kind::kAdd>(stream, "add_rms_norm", x, TensorView(), weight, epsilon, residual);
}
void gated_rms_norm(Stream& stream, const TensorView& x, const TensorView& gate,
                    const TensorView& weight, float epsilon, const TensorView& y) {
  run<Kind::kGated>(stream, "gated_rms_norm", x, gate, weight, epsilon, y);
}

}  // namespace braid::cuda

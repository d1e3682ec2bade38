#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/row_vectors.cuh"
#include "ops/fused/cuda/copied_rows.cuh"
#include "ops/fused/cuda/packed_rows.cuh"
#include "ops/fused/cuda/row_math.cuh"
#include "ops/norm/cuda/rms_norm.cuh"

namespace braid::cuda {
namespace {

constexpr int kMostThreads = 512;  // of rows that take several vectors a thread
// From here on blocks follow one another, so that smaller ones that share a multiprocessor keep the
// memory busier.
constexpr int kManyTokens = 256;
constexpr int kMaxChoices = 64;
constexpr int kGatherThreads = 128;

// Blocks of a multiprocessor, at least.
constexpr int least_blocks(int vectors) { return vectors == 2 ? 3 : 1; }

// The sum of squares of a row, for all threads. With two vectors a thread it is that of one vector
// each of twice the threads, bit for bit.
template <int kVectors>
__device__ __forceinline__ float squares_of(const float4 (&v)[kVectors]) {
  if constexpr (kVectors == 2) {
    __shared__ float partial[kWarp];
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int num_warps = blockDim.x / kWarp;
    const float first = warp_sum(sum_of_squares(v[0]));
    const float second = warp_sum(sum_of_squares(v[1]));
    __syncthreads();  // of an earlier call
    if (lane == 0) {
      partial[warp] = first;
      partial[num_warps + warp] = second;
    }
    __syncthreads();
    return warp_sum(lane < 2 * num_warps ? partial[lane] : 0);
  } else {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) sum += sum_of_squares(v[j]);
    return block_sum(sum);
  }
}

struct BranchArguments {
  Rows<const float> y;
  const float* norm;
  float epsilon;
  float factor;
  Rows<float> x;
  int width, padded;
  const float* input_norms[kMaxInputNorms];
  float input_epsilons[kMaxInputNorms];
  Rows<uint16_t> inputs[kMaxInputNorms];
};

// A block takes a token, each thread kVectors · 4 elements of it in registers.
template <bool kNormed, int kInputs, bool kAligned, int kVectors>
__global__ void __launch_bounds__(kVectors == 1 ? 1024 : kMostThreads, least_blocks(kVectors))
    branch_kernel(const __grid_constant__ BranchArguments args) {
  let_next_begin_if_few();
  const auto element = [](int j) { return 4 * (j * blockDim.x + threadIdx.x); };
  const auto weight = [&](const float* weights, int j) {
    return weights != nullptr ? load4<kAligned>(weights, element(j), args.width)
                              : float4{1, 1, 1, 1};
  };
  float4 w[kVectors], input_w[kInputs > 0 ? kInputs : 1][kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    if constexpr (kNormed) w[j] = weight(args.norm, j);
    if constexpr (kVectors == 1) {
#pragma unroll
      for (int n = 0; n < kInputs; ++n) input_w[n][j] = weight(args.input_norms[n], j);
    }
  }
  wait_for_inputs();
  float4 v[kVectors], y[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    y[j] = load4<kAligned>(args.y[blockIdx.x], element(j), args.width);
    v[j] = load4<kAligned>(args.x[blockIdx.x], element(j), args.width);
  }
  if constexpr (kNormed) {
    const float scale = inverse_rms(squares_of(y), args.width, args.epsilon);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) y[j] = times(times(y[j], scale), w[j]);
  }
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    v[j] = times(plus(v[j], y[j]), args.factor);
    store4<kAligned>(args.x[blockIdx.x], element(j), args.width, v[j]);
  }
  if constexpr (kInputs > 0) {
    const float sum = squares_of(v);
#pragma unroll
    for (int n = 0; n < kInputs; ++n) {
      const float scale = inverse_rms(sum, args.width, args.input_epsilons[n]);
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        if (element(j) >= args.padded) continue;
        const float4 gain = kVectors == 1 ? input_w[n][j] : weight(args.input_norms[n], j);
        store_rounded(args.inputs[n][blockIdx.x], element(j), times(times(v[j], scale), gain));
      }
    }
  }
}

template <bool kNormed, int kInputs, bool kAligned>
void launch_branch(Stream& stream, const BranchArguments& args, int64_t tokens) {
  const auto run = [&](auto kernel, int vectors) {
    const int threads = ceil_divide(ceil_divide(args.padded, 4 * vectors), kWarp) * kWarp;
    launch(stream, kernel, static_cast<unsigned>(tokens), threads, 0, args);
  };
  if (kAligned && args.padded <= 4096 && tokens >= kManyTokens) {
    run(branch_kernel<kNormed, kInputs, true, 2>, 2);
  } else if (args.padded <= 4096) {
    run(branch_kernel<kNormed, kInputs, kAligned, 1>, 1);
  } else {
    run(branch_kernel<kNormed, kInputs, kAligned, 8>, 8);
  }
}

template <typename Y>
struct CombineArguments {
  Rows<const Y> y;
  const int32_t* places;
  Rows<const float> weights;
  const float* dense_norm;
  const float* experts_norm;
  float epsilon;
  Rows<float> dense;
  int k, width;
};

// The sums are those of combine_experts and rms_norm.
template <bool kAligned, int kVectors, typename Y>
__global__ void __launch_bounds__(kVectors == 1 ? 1024 : kMostThreads, kVectors == 2 ? 2 : 1)
    combine_kernel(const __grid_constant__ CombineArguments<Y> args) {
  __shared__ int sorted_places[kMaxChoices];
  __shared__ float sorted_weights[kMaxChoices];
  const auto element = [](int j) { return 4 * (j * blockDim.x + threadIdx.x); };
  float4 dense_w[kVectors], experts_w[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    dense_w[j] = load4<kAligned>(args.dense_norm, element(j), args.width);
    experts_w[j] = load4<kAligned>(args.experts_norm, element(j), args.width);
  }
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  const int32_t* places = args.places + token * args.k;
  float4 dense[kVectors], sum[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    dense[j] = load4<kAligned>(args.dense[token], element(j), args.width);
    sum[j] = float4{};
  }
  // Places ascend with the expert.
  for (int choice = threadIdx.x; choice < args.k; choice += blockDim.x) {
    const int own = places[choice];
    int rank = 0;
    for (int other = 0; other < args.k; ++other) rank += places[other] < own;
    sorted_places[rank] = own;
    sorted_weights[rank] = args.weights[token][choice];
  }
  __syncthreads();
#pragma unroll(kVectors == 8 ? 1 : sizeof(Y) == 2 ? 8 : 4)
  for (int n = 0; n < args.k; ++n) {
    const Y* y = args.y[sorted_places[n]];
    const float weight = sorted_weights[n];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const float4 term = times(load4_of<kAligned>(y, element(j), args.width), weight);
      sum[j] = n == 0 ? term : plus(sum[j], term);
    }
  }
  const float dense_scale = inverse_rms(squares_of(dense), args.width, args.epsilon);
  const float scale = inverse_rms(squares_of(sum), args.width, args.epsilon);
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    store4<kAligned>(args.dense[token], element(j), args.width,
                     plus(times(times(dense[j], dense_scale), dense_w[j]),
                          times(times(sum[j], scale), experts_w[j])));
  }
}

// The same for many tokens, with rounded rows that come to shared memory.
__global__ void __launch_bounds__(kCopiedThreads, kCopiedBlocks)
    combine_copied_kernel(const __grid_constant__ CombineArguments<uint16_t> args) {
  constexpr int kVectors = 2;
  extern __shared__ __align__(16) uint16_t rows[];
  __shared__ float sorted_weights[kMostCopiedRows];
  __shared__ uint64_t arrived;
  const auto element = [](int j) { return 4 * (j * blockDim.x + threadIdx.x); };
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  if (threadIdx.x < kWarp) {
    const int choice = threadIdx.x;
    const int own = choice < args.k ? args.places[token * args.k + choice] : INT32_MAX;
    const float weight = choice < args.k ? args.weights[token][choice] : 0;
    int rank = 0;  // places ascend with the expert
#pragma unroll 2
    for (int other = 0; other < args.k; ++other) {
      rank += __shfl_sync(0xffffffffu, own, other) < own;
    }
    if (choice < args.k) sorted_weights[rank] = weight;
    begin_copying_rows(args.y, args.k, args.width, own, rank, rows, arrived);
  }
  float4 dense[kVectors], sum[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    dense[j] = load4<true>(args.dense[token], element(j), args.width);
    sum[j] = float4{};
  }
  const float dense_scale = inverse_rms(squares_of(dense), args.width, args.epsilon);
  __syncthreads();
  wait_barrier(shared_address(&arrived), 0);
#pragma unroll 1
  for (int n = 0; n < args.k; ++n) {
    const uint16_t* y = rows + n * args.width;
    const float weight = sorted_weights[n];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const float4 term = times(load4_of<true>(y, element(j), args.width), weight);
      sum[j] = n == 0 ? term : plus(sum[j], term);
    }
  }
  const float scale = inverse_rms(squares_of(sum), args.width, args.epsilon);
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const float4 dense_w = load4<true>(args.dense_norm, element(j), args.width);
    const float4 experts_w = load4<true>(args.experts_norm, element(j), args.width);
    store4<true>(
        args.dense[token], element(j), args.width,
        plus(times(times(dense[j], dense_scale), dense_w), times(times(sum[j], scale), experts_w)));
  }
}

__global__ void __launch_bounds__(kGatherThreads)
    gather_kernel(Rows<const uint16_t> from, const int32_t* rows, Rows<uint16_t> to, int padded) {
  wait_for_inputs();
  const int i = 8 * (blockIdx.x * kGatherThreads + threadIdx.x);
  if (i >= padded) return;
  *reinterpret_cast<uint4*>(to[blockIdx.y] + i) =
      *reinterpret_cast<const uint4*>(from[rows[blockIdx.y]] + i);
}

}  // namespace

void add_branch(Stream& stream, Workspace& workspace, const ResidualBranch& branch,
                const TensorView& x, std::span<const InputNorm> norms,
                std::span<LinearInput> inputs) {
  const int64_t width = x.dim(1);
  BranchArguments args{
      .y = rows_of<const float>(branch.y),
      .norm = branch.norm.empty() ? nullptr : branch.norm.data<float>(),
      .epsilon = branch.epsilon,
      .factor = branch.factor,
      .x = rows_of<float>(x),
      .width = static_cast<int>(width),
      .padded = static_cast<int>(ceil_divide<int64_t>(width, kPackedColumns) * kPackedColumns)};
  BRAID_CHECK(args.padded <= 8 * 4 * kMostThreads, "a norm of rows of {}", width);
  bool aligned = rows_are_aligned(branch.y, x) && aligned_weights(branch.norm);
  for (size_t i = 0; i < norms.size(); ++i) {
    const PackedRows packed = norms[i].room.empty() ? PackedRows(workspace, x.dim(0), width)
                                                    : PackedRows(norms[i].room, width);
    BRAID_CHECK(packed.padded == args.padded, "room for rows of {}", packed.padded);
    args.input_norms[i] = norms[i].weight.empty() ? nullptr : norms[i].weight.data<float>();
    args.input_epsilons[i] = norms[i].epsilon;
    args.inputs[i] = packed.rows();
    inputs[i] = packed.input(x);
    aligned = aligned && aligned_weights(norms[i].weight);
  }
  with_alignment(aligned, [&](auto constant) {
    constexpr bool kAligned = decltype(constant)::value;
    const auto run = [&](auto normed) {
      constexpr bool kNormed = decltype(normed)::value;
      switch (norms.size()) {
        case 0:
          return launch_branch<kNormed, 0, kAligned>(stream, args, x.dim(0));
        case 1:
          return launch_branch<kNormed, 1, kAligned>(stream, args, x.dim(0));
        case 2:
          return launch_branch<kNormed, 2, kAligned>(stream, args, x.dim(0));
        case 3:
          return launch_branch<kNormed, 3, kAligned>(stream, args, x.dim(0));
        default:
          return launch_branch<kNormed, 4, kAligned>(stream, args, x.dim(0));
      }
    };
    if (branch.normed) {
      run(std::true_type{});
    } else {
      run(std::false_type{});
    }
  });
  stream.cuda().finish_op("add_branch", true);
}

void combine_with_dense(Stream& stream, const TensorView& expert_outputs,
                        const ExpertGroups& groups, const TensorView& experts,
                        const TensorView& weights, const NormedBranches& norms,
                        const TensorView& dense) {
  const int width = static_cast<int>(dense.dim(1)), k = static_cast<int>(experts.dim(1));
  BRAID_CHECK(k <= kMaxChoices && width <= 8 * 4 * kMostThreads, "{} experts a token, rows of {}",
              k, width);
  const bool aligned = rows_are_aligned(expert_outputs, dense) &&
                       aligned_weights(norms.dense_norm) && aligned_weights(norms.experts_norm);
  const auto combine = [&]<typename Y, bool kAligned>(Rows<const Y> y,
                                                      std::bool_constant<kAligned>) {
    const CombineArguments<Y> args{.y = y,
                                   .places = groups.places.data<int32_t>(),
                                   .weights = rows_of<const float>(weights),
                                   .dense_norm = norms.dense_norm.data<float>(),
                                   .experts_norm = norms.experts_norm.data<float>(),
                                   .epsilon = norms.epsilon,
                                   .dense = rows_of<float>(dense),
                                   .k = k,
                                   .width = width};
    const auto run = [&](auto kernel, int vectors, size_t shared_bytes = 0) {
      const int threads = ceil_divide(ceil_divide(width, 4 * vectors), kWarp) * kWarp;
      launch(stream, kernel, static_cast<unsigned>(dense.dim(0)), threads, shared_bytes, args);
    };
    if constexpr (std::is_same_v<Y, uint16_t>) {
      if (width <= 4096 && dense.dim(0) >= kManyTokens &&
          can_copy_rows(stream, expert_outputs, k, width)) {
        allow_copied_rows<combine_copied_kernel>();
        return run(combine_copied_kernel, 2, static_cast<size_t>(2) * k * width);
      }
    }
    if (kAligned && width <= 4096 && dense.dim(0) >= kManyTokens) {
      run(combine_kernel<true, 2, Y>, 2);
    } else if (width <= 4096) {
      run(combine_kernel<kAligned, 1, Y>, 1);
    } else {
      run(combine_kernel<kAligned, 8, Y>, 8);
    }
  };
  if (expert_outputs.dtype() == DType::kBF16) {
    BRAID_CHECK(aligned, "rounded rows of {}", width);
    combine(rounded_rows_of(expert_outputs), std::true_type{});
  } else {
    with_alignment(aligned,
                   [&](auto constant) { combine(rows_of<const float>(expert_outputs), constant); });
  }
  stream.cuda().finish_op("combine_with_dense");
}

LinearInput gather_packed_input(Stream& stream, Workspace& workspace, const LinearInput& x,
                                const TensorView& rows) {
  const int64_t count = rows.num_elements();
  const PackedRows packed(workspace, count, x.x.dim(1));
  const dim3 grid(static_cast<unsigned>(ceil_divide<int64_t>(packed.padded, 8 * kGatherThreads)),
                  static_cast<unsigned>(count));
  launch(stream, gather_kernel, grid, kGatherThreads, 0,
         Rows<const uint16_t>{static_cast<const uint16_t*>(x.packed.raw()), x.packed.row_stride()},
         rows.data<int32_t>(), packed.rows(), static_cast<int>(packed.padded));
  stream.cuda().finish_op("gather_packed_input");
  // Only its shape is asked for.
  return packed.input(TensorView(x.x.raw(), DType::kF32, {count, x.x.dim(1)}, x.x.device()));
}

}  // namespace braid::cuda

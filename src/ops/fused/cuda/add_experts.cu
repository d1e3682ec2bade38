#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/row_vectors.cuh"
#include "ops/fused/cuda/copied_rows.cuh"
#include "ops/fused/cuda/row_math.cuh"
#include "ops/fused/cuda/token_codes.cuh"
#include "ops/moe/cuda/few_choices.cuh"
#include "ops/norm/cuda/rms_norm.cuh"

namespace braid::cuda {
namespace {

constexpr int kMostThreads = 1024;
// Fewer of them have more registers each, for few tokens.
constexpr int kFewThreads = 768;
constexpr int kMaxChoices = kWarp;
// From here on the kernels of combine_with_dense() and add_branch() keep the memory busier.
constexpr int kManyTokens = 256;
// Rows of experts that are fetched together.
template <int kThreads, typename Y = float>
constexpr int kRowsAtOnce = kThreads <= kFewThreads || sizeof(Y) == 2 ? 10 : 8;

// What the sums share: a block takes a token, each thread four elements of it.
struct SumArguments {
  Rows<float> x;
  int width, padded;
  int num_inputs;
  const float* input_norms[kMaxInputNorms];
  float input_epsilons[kMaxInputNorms];
  Rows<uint16_t> inputs[kMaxInputNorms];  // of bfloat16; null:
  TokenCodeRows codes[kMaxInputNorms];
};

template <typename Y>  // float, or bfloat16's bits
struct ExpertArguments {
  Rows<const Y> rows;
  const int32_t* places;
  Rows<const float> weights;
  int k, width;
  FewChoices few;  // has logits: those are found here
};

struct Choices {
  int places[kMaxChoices];
  int64_t elements[kMaxChoices];  // in front of the rows
  float weights[kMaxChoices];
};

__device__ __forceinline__ float4 gain_of(const float* weights, int i, int width) {
  return weights != nullptr ? load4<true>(weights, i, width) : float4{1, 1, 1, 1};
}

// By a warp, whose lane has place `own` (beyond k: the largest number): places ascend with the
// expert.
template <typename Y>
__device__ __forceinline__ void sort_choices(const ExpertArguments<Y>& args, int own, float weight,
                                             Choices& choices) {
  const int choice = threadIdx.x % kWarp;
  int rank = 0;
#pragma unroll 2
  for (int other = 0; other < args.k; ++other) {
    rank += __shfl_sync(0xffffffffu, own, other) < own;
  }
  if (choice < args.k) {
    choices.places[rank] = own;
    choices.elements[rank] = own * args.rows.stride;
    choices.weights[rank] = weight;
  }
}

// By the first warp, from memory.
template <typename Y>
__device__ __forceinline__ void read_choices(const ExpertArguments<Y>& args, int64_t token,
                                             Choices& choices) {
  const int choice = threadIdx.x;
  const int own = choice < args.k ? args.places[token * args.k + choice] : INT32_MAX;
  sort_choices(args, own, choice < args.k ? args.weights[token][choice] : 0, choices);
}

// By all warps: the same, from the router's logits where the choices are not in memory. A barrier
// of the block must follow.
struct ChoiceSearch {
  ChoiceRoom rooms[kMostFewTokens];
  int keys[kMostFewPairs];
};
template <typename Y>
__device__ __forceinline__ void find_choices(const ExpertArguments<Y>& args, int64_t token,
                                             ChoiceSearch& search, Choices& choices) {
  const FewChoices& few = args.few;
  if (few.logits == nullptr) {
    if (threadIdx.x < kWarp) read_choices(args, token, choices);
    return;
  }
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int warps = min(static_cast<int>(blockDim.x) / kWarp, kMostFewTokens);
  float weight = 0;
  const int own_warp = static_cast<int>(token) % warps;
  if (warp < warps) {
#pragma unroll 1
    for (int other = warp; other < few.tokens; other += warps) {
      const Choice choice = choose_few(few, other, search.rooms[warp]);
      if (lane < few.k) search.keys[other * few.k + lane] = pair_key(choice.expert, other);
      if (other == token) {
        weight = weight_of(choice, few.logits + token * few.stride, few.experts, few.k,
                           few.over_chosen, few.expert_scale);
      }
    }
  }
  __syncthreads();
  if (warp != own_warp) return;
  int own = INT32_MAX;
  if (lane < few.k) {
    own = place_of(search.keys[token * few.k + lane], search.keys, few.tokens * few.k);
  }
  sort_choices(args, own, weight, choices);
}

// The sum of combine_experts(). Where the first rows lie is known before they are there.
template <int kAtOnce, typename Y>
class Combined {
 public:
  __device__ Combined(const ExpertArguments<Y>& args, const Choices& choices, int i)
      : args_(args), choices_(choices), i_(i) {
    find(0);
  }

  __device__ float4 sum() {
    float4 sum{};
#pragma unroll 1
    for (int first = 0;;) {
      float4 v[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        v[n] = load4_of<true>(args_.rows.data + elements_[n], i_, args_.width);
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        if (first + n >= args_.k) break;
        const float4 term = times(v[n], choices_.weights[first + n]);
        sum = first + n == 0 ? term : plus(sum, term);
      }
      first += kAtOnce;
      if (first >= args_.k) return sum;
      find(first);
    }
  }

 private:
  __device__ void find(int first) {
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      elements_[n] = choices_.elements[min(first + n, args_.k - 1)];
    }
  }

  const ExpertArguments<Y>& args_;
  const Choices& choices_;
  int i_;
  int64_t elements_[kAtOnce];
};

// x ← v and the norms of it.
__device__ __forceinline__ void store_sum(const SumArguments& args, int64_t token, int i, float4 v,
                                          float4 first_gain) {
  store4<true>(args.x[token], i, args.width, v);
  if (args.num_inputs == 0) return;
  const float sum = block_sum(sum_of_squares(v));
#pragma unroll 1
  for (int n = 0; n < args.num_inputs; ++n) {
    const float* weights = args.input_norms[n];
    const float4 gain =
        weights == args.input_norms[0] ? first_gain : gain_of(weights, i, args.width);
    const float scale = inverse_rms(sum, args.width, args.input_epsilons[n]);
    const float4 normed[1] = {times(times(v, scale), gain)};
    if (args.inputs[n].data == nullptr) {
      args.codes[n].store(token, normed, args.width, args.padded);
    } else if (i < args.padded) {
      store_rounded(args.inputs[n][token], i, normed[0]);
    }
  }
}

struct BranchArguments {
  SumArguments sum;
  Rows<const float> y;
  const float* norm;  // or null
  float epsilon;
  float factor;
};

template <bool kNormed>
__global__ void __launch_bounds__(kMostThreads, 1)
    branch_kernel(const __grid_constant__ BranchArguments args) {
  let_next_begin_if_few();
  const SumArguments& sum = args.sum;
  const int64_t token = blockIdx.x;
  const int i = 4 * threadIdx.x;
  const float4 gain = gain_of(sum.input_norms[0], i, sum.width);
  const float4 branch_gain = gain_of(args.norm, i, sum.width);
  wait_for_inputs();
  const float4 old = load4<true>(sum.x[token], i, sum.width);
  float4 y = load4<true>(args.y[token], i, sum.width);
  if constexpr (kNormed) {
    const float scale = inverse_rms(block_sum(sum_of_squares(y)), sum.width, args.epsilon);
    y = times(times(y, scale), branch_gain);
  }
  store_sum(sum, token, i, times(plus(old, y), args.factor), gain);
}

template <typename Y>
struct SharedArguments {
  SumArguments sum;
  ExpertArguments<Y> experts;
  Rows<const float> shared;
  const uint16_t* gate;
  Rows<const uint16_t> gate_input;
  int gate_cols;
};

// What a thread has of the gate's product.
template <typename Y>
__device__ __forceinline__ float gate_product(const SharedArguments<Y>& args, int64_t token) {
  float gate = 0;
#pragma unroll 1
  for (int c = 8 * threadIdx.x; c < args.gate_cols; c += 8 * blockDim.x) {
    const uint4 w = *reinterpret_cast<const uint4*>(args.gate + c);
    const uint4 v = *reinterpret_cast<const uint4*>(args.gate_input[token] + c);
    gate = dot(w.w, v.w, dot(w.z, v.z, dot(w.y, v.y, dot(w.x, v.x, gate))));
  }
  return gate;
}

template <int kThreads, typename Y>
__global__ void __launch_bounds__(kThreads, 1)
    shared_kernel(const __grid_constant__ SharedArguments<Y> args) {
  let_next_begin_if_few();
  __shared__ Choices choices;
  const SumArguments& sum = args.sum;
  const int64_t token = blockIdx.x;
  const int i = 4 * threadIdx.x;
  // Only the rows of experts may be incomplete yet.
  const float4 old = load4<true>(sum.x[token], i, sum.width);
  const float4 gain = gain_of(sum.input_norms[0], i, sum.width);
  __shared__ ChoiceSearch search;
  find_choices(args.experts, token, search, choices);
  float gate = gate_product(args, token);
  gate = block_sum(gate);
  const auto factor = static_cast<float>(1 / (1 + exp(-static_cast<double>(gate))));
  __syncthreads();
  Combined<kRowsAtOnce<kThreads, Y>, Y> combined(args.experts, choices, i);
  wait_for_inputs();
  const float4 shared = load4<true>(args.shared[token], i, sum.width);
  float4 v = combined.sum();
  v = {fmaf(factor, shared.x, v.x), fmaf(factor, shared.y, v.y), fmaf(factor, shared.z, v.z),
       fmaf(factor, shared.w, v.w)};
  store_sum(sum, token, i, plus(old, v), gain);
}

// The same for many tokens, with rounded rows that come to shared memory.
__global__ void __launch_bounds__(kCopiedThreads, kCopiedBlocks)
    copied_shared_kernel(const __grid_constant__ SharedArguments<uint16_t> args) {
  extern __shared__ __align__(16) uint16_t rows[];
  __shared__ Choices choices;
  __shared__ uint64_t arrived;
  const SumArguments& sum = args.sum;
  const ExpertArguments<uint16_t>& experts = args.experts;
  const int64_t token = blockIdx.x;
  const int i = 4 * threadIdx.x;
  // Only the rows of experts may be incomplete yet.
  if (threadIdx.x < kWarp) read_choices(experts, token, choices);
  float gate = gate_product(args, token);
  __syncthreads();
  wait_for_inputs();
  if (threadIdx.x < kWarp) {
    const int choice = min(static_cast<int>(threadIdx.x), experts.k - 1);
    begin_copying_rows(experts.rows, experts.k, experts.width, choices.places[choice], choice, rows,
                       arrived);
  }
  const float4 shared = load4<true>(args.shared[token], i, sum.width);
  const float4 old = load4<true>(sum.x[token], i, sum.width);
  gate = block_sum(gate);
  const auto factor = static_cast<float>(1 / (1 + exp(-static_cast<double>(gate))));
  wait_barrier(shared_address(&arrived), 0);
  float4 v{};
#pragma unroll 2
  for (int n = 0; n < experts.k; ++n) {
    const float4 term =
        times(load4_of<true>(rows + n * experts.width, i, experts.width), choices.weights[n]);
    v = n == 0 ? term : plus(v, term);
  }
  v = {fmaf(factor, shared.x, v.x), fmaf(factor, shared.y, v.y), fmaf(factor, shared.z, v.z),
       fmaf(factor, shared.w, v.w)};
  store_sum(sum, token, i, plus(old, v), gain_of(sum.input_norms[0], i, sum.width));
}

struct DenseArguments {
  SumArguments sum;
  ExpertArguments<float> experts;
  Rows<const float> dense;
  const float* dense_norm;
  const float* experts_norm;
  float epsilon;
  const float* branch_norm;  // or null
  float branch_epsilon;
  float factor;
};

template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1)
    dense_kernel(const __grid_constant__ DenseArguments args) {
  let_next_begin_if_few();
  __shared__ Choices choices;
  const SumArguments& sum = args.sum;
  const int64_t token = blockIdx.x;
  const int i = 4 * threadIdx.x;
  // Only the rows of experts and of the dense branch may be incomplete yet.
  const float4 old = load4<true>(sum.x[token], i, sum.width);
  const float4 gain = gain_of(sum.input_norms[0], i, sum.width);
  const float4 dense_gain = gain_of(args.dense_norm, i, sum.width);
  const float4 experts_gain = gain_of(args.experts_norm, i, sum.width);
  const float4 branch_gain = gain_of(args.branch_norm, i, sum.width);
  __shared__ ChoiceSearch search;
  find_choices(args.experts, token, search, choices);
  __syncthreads();
  Combined<8, float> combined(args.experts, choices, i);
  wait_for_inputs();
  const float4 dense = load4<true>(args.dense[token], i, sum.width);
  const float4 experts = combined.sum();
  const float dense_scale = inverse_rms(block_sum(sum_of_squares(dense)), sum.width, args.epsilon);
  const float scale = inverse_rms(block_sum(sum_of_squares(experts)), sum.width, args.epsilon);
  float4 y = plus(times(times(dense, dense_scale), dense_gain),
                  times(times(experts, scale), experts_gain));
  const float branch_scale =
      inverse_rms(block_sum(sum_of_squares(y)), sum.width, args.branch_epsilon);
  y = times(times(y, branch_scale), branch_gain);
  store_sum(sum, token, i, times(plus(old, y), args.factor), gain);
}

bool can_sum(const TensorView& x) { return x.dim(1) <= 4 * kMostThreads && rows_are_aligned(x); }
bool can_sum(const ExpertRows& experts, const TensorView& x) {
  return can_sum(x) && experts.experts.dim(1) <= kMaxChoices && rows_are_aligned(experts.rows);
}

template <typename Y>
ExpertArguments<Y> expert_arguments(const ExpertRows& experts) {
  return {.rows = {static_cast<const Y*>(experts.rows.raw()), experts.rows.row_stride()},
          .places = experts.groups.places.data<int32_t>(),
          .weights = rows_of<const float>(experts.weights),
          .k = static_cast<int>(experts.experts.dim(1)),
          .width = static_cast<int>(experts.rows.dim(1)),
          .few = few_choices(experts.groups.router, static_cast<int>(experts.experts.dim(1)))};
}

SumArguments sum_arguments(Stream& stream, Workspace& workspace, const TensorView& x,
                           std::span<const InputNorm> norms, std::span<LinearInput> inputs) {
  const int64_t width = x.dim(1);
  SumArguments args{
      .x = rows_of<float>(x),
      .width = static_cast<int>(width),
      .padded = static_cast<int>(ceil_divide<int64_t>(width, kPackedColumns) * kPackedColumns),
      .num_inputs = static_cast<int>(norms.size())};
  for (size_t i = 0; i < norms.size(); ++i) {
    const InputNorm& norm = norms[i];
    BRAID_CHECK(aligned_weights(norm.weight), "the weight of a norm is not aligned");
    args.input_norms[i] = norm.weight.empty() ? nullptr : norm.weight.data<float>();
    args.input_epsilons[i] = norm.epsilon;
    const auto packed = [&] {
      return norm.room.empty() ? PackedRows(workspace, x.dim(0), width)
                               : PackedRows(norm.room, width);
    };
    if (takes_token_codes(stream, norm.rounding, width)) {
      const bool with_packed = norm.rounding.scales.per_block;
      const TokenCodes codes =
          norm.code_room.empty()
              ? TokenCodes(workspace, x.dim(0), width, with_packed)
              : TokenCodes(norm.code_room, norm.scale_room, with_packed ? packed() : PackedRows());
      args.codes[i] = codes.rows();
      inputs[i] = codes.input(x);
    } else {
      const PackedRows rows = packed();
      BRAID_CHECK(rows.padded == args.padded, "room for rows of {}", rows.padded);
      args.inputs[i] = rows.rows();
      inputs[i] = rows.input(x);
    }
  }
  return args;
}

template <typename Arguments>
void launch_rows(Stream& stream, void (*few)(Arguments), void (*most)(Arguments),
                 const Arguments& args, const TensorView& x) {
  const int threads = ceil_divide(args.sum.padded / 4, kWarp) * kWarp;
  const bool few_fit = threads <= kFewThreads && x.dim(0) < kManyTokens;
  launch(stream, few_fit ? few : most, static_cast<unsigned>(x.dim(0)), threads, 0, args);
}

const float* weights_of(const TensorView& norm) {
  return norm.empty() ? nullptr : norm.data<float>();
}

}  // namespace

bool sums_give_codes(const TensorView& x) { return can_sum(x); }

bool can_add_coded_branch(const ResidualBranch& branch, const TensorView& x) {
  return sums_give_codes(x) && rows_are_aligned(branch.y) && aligned_weights(branch.norm);
}

void add_coded_branch(Stream& stream, Workspace& workspace, const ResidualBranch& branch,
                      const TensorView& x, std::span<const InputNorm> norms,
                      std::span<LinearInput> inputs) {
  const BranchArguments args{.sum = sum_arguments(stream, workspace, x, norms, inputs),
                             .y = rows_of<const float>(branch.y),
                             .norm = weights_of(branch.norm),
                             .epsilon = branch.epsilon,
                             .factor = branch.factor};
  const auto kernel = branch.normed ? branch_kernel<true> : branch_kernel<false>;
  launch_rows(stream, kernel, kernel, args, x);
  stream.cuda().finish_op("add_branch", true);
}

bool can_add_experts(Stream&, const ExpertRows& experts, const SharedExpert& shared,
                     const TensorView& x) {
  return can_sum(experts, x) && rows_are_aligned(shared.rows) &&
         shared.gate.format->id == FormatId::kBF16 && shared.gate.cols() % 8 == 0 &&
         reinterpret_cast<uintptr_t>(shared.gate.data) % 16 == 0 &&
         shared.gate_input.packed.rank() == 2 && shared.gate_input.packed.row_stride() % 8 == 0;
}

void add_experts(Stream& stream, Workspace& workspace, const ExpertRows& experts,
                 const SharedExpert& shared, const TensorView& x, std::span<const InputNorm> norms,
                 std::span<LinearInput> inputs) {
  BRAID_CHECK(!stream.cuda().next_begins_ahead(), "sum of experts");
  const TensorView& packed = shared.gate_input.packed;
  const auto run = [&]<typename Y>(ExpertArguments<Y> rows) {
    const SharedArguments<Y> args{
        .sum = sum_arguments(stream, workspace, x, norms, inputs),
        .experts = rows,
        .shared = rows_of<const float>(shared.rows),
        .gate = reinterpret_cast<const uint16_t*>(shared.gate.data),
        .gate_input = {static_cast<const uint16_t*>(packed.raw()), packed.row_stride()},
        .gate_cols = static_cast<int>(shared.gate.cols())};
    if constexpr (std::is_same_v<Y, uint16_t>) {
      const int threads = ceil_divide(args.sum.padded / 4, kWarp) * kWarp;
      if (x.dim(0) >= kManyTokens && threads <= kCopiedThreads &&
          can_copy_rows(stream, experts.rows, args.experts.k, args.experts.width)) {
        allow_copied_rows<copied_shared_kernel>();
        return launch(stream, copied_shared_kernel, static_cast<unsigned>(x.dim(0)), threads,
                      static_cast<size_t>(2) * args.experts.k * args.experts.width, args);
      }
    }
    launch_rows(stream, shared_kernel<kFewThreads, Y>, shared_kernel<kMostThreads, Y>, args, x);
  };
  if (experts.rows.dtype() == DType::kBF16) {
    run(expert_arguments<uint16_t>(experts));
  } else {
    run(expert_arguments<float>(experts));
  }
  stream.cuda().finish_op("add_experts", true);
}

bool can_add_dense_and_experts(Stream&, const ExpertRows& experts, const NormedBranches& halves,
                               const ResidualBranch& branch, const TensorView& x) {
  return x.dim(0) < kManyTokens && can_sum(experts, x) && experts.rows.dtype() == DType::kF32 &&
         rows_are_aligned(branch.y) && aligned_weights(branch.norm) &&
         aligned_weights(halves.dense_norm) && aligned_weights(halves.experts_norm);
}

void add_dense_and_experts(Stream& stream, Workspace& workspace, const ExpertRows& experts,
                           const NormedBranches& halves, const ResidualBranch& branch,
                           const TensorView& x, std::span<const InputNorm> norms,
                           std::span<LinearInput> inputs) {
  BRAID_CHECK(!stream.cuda().next_begins_ahead(), "sum of experts");
  const DenseArguments args{.sum = sum_arguments(stream, workspace, x, norms, inputs),
                            .experts = expert_arguments<float>(experts),
                            .dense = rows_of<const float>(branch.y),
                            .dense_norm = weights_of(halves.dense_norm),
                            .experts_norm = weights_of(halves.experts_norm),
                            .epsilon = halves.epsilon,
                            .branch_norm = weights_of(branch.norm),
                            .branch_epsilon = branch.epsilon,
                            .factor = branch.factor};
  launch_rows(stream, dense_kernel<kFewThreads>, dense_kernel<kMostThreads>, args, x);
  stream.cuda().finish_op("add_dense_and_experts", true);
}

}  // namespace braid::cuda

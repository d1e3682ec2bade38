#include <type_traits>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/row_vectors.cuh"
#include "ops/moe/cuda/top_k.cuh"

namespace braid::cuda {
namespace {

constexpr int kRouterWarps = 4;
constexpr int kGroupWarps = 8;
constexpr int kCombineThreads = 256;
constexpr int kMaxChoices = 256;

// A warp routes one token.
template <int kPerLane>
__global__ void __launch_bounds__(kRouterWarps* kWarp)
    top_k_kernel(Rows<const float> logits, const float* expert_scale, Rows<int32_t> experts,
                 Rows<float> weights, int num_experts, int k, int64_t tokens, bool over_chosen) {
  wait_for_inputs();
  const int lane = threadIdx.x % kWarp;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kRouterWarps + threadIdx.x / kWarp;
  if (token >= tokens) return;
  WarpTopK<kPerLane> all;
  all.load(logits[token], num_experts, lane);
  int32_t* chosen = experts[token];
  float* factors = weights[token];
  float largest = 0, sum = 0;
  for (int i = 0; i < k; ++i) {
    const Choice choice = all.take_next(lane);
    if (i == 0) largest = choice.logit;
    if (over_chosen) sum += expf(choice.logit - largest);
    if (lane == 0) {
      chosen[i] = choice.expert;
      factors[i] = choice.logit;
    }
  }
  if (!over_chosen) {
    for (int i = lane; i < num_experts; i += kWarp) sum += expf(logits[token][i] - largest);
    sum = warp_sum(sum);
  }
  __syncwarp();
  for (int i = lane; i < k; i += kWarp) {
    float weight = expf(factors[i] - largest) / sum;
    if (expert_scale != nullptr) weight *= expert_scale[chosen[i]];
    factors[i] = weight;
  }
}

// A block finds the pairs of one expert, in order: its warps take stretches of the list.
__global__ void __launch_bounds__(kGroupWarps* kWarp)
    group_kernel(Rows<const int32_t> experts, int k, int num_pairs, int32_t* offsets,
                 int32_t* tokens, int32_t* places) {
  __shared__ int before[kGroupWarps], own[kGroupWarps];
  const int expert = blockIdx.x;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int stretch = ceil_divide(ceil_divide(num_pairs, kGroupWarps), kWarp) * kWarp;
  const int begin = min(warp * stretch, num_pairs);
  const int end = min(begin + stretch, num_pairs);
  const auto expert_at = [&](int pair) {
    return pair < end ? experts[pair / k][pair % k] : INT32_MAX;
  };
  wait_for_inputs();
  int num_before = 0, num_own = 0;
#pragma unroll 4
  for (int first = begin; first < end; first += kWarp) {
    const int id = expert_at(first + lane);
    num_before += __popc(__ballot_sync(0xffffffffu, id < expert));
    num_own += __popc(__ballot_sync(0xffffffffu, id == expert));
  }
  if (lane == 0) {
    before[warp] = num_before;
    own[warp] = num_own;
  }
  __syncthreads();
  int place = 0, total_before = 0;
  for (int w = 0; w < kGroupWarps; ++w) {
    total_before += before[w];
    if (w < warp) place += own[w];
  }
  place += total_before;
  if (threadIdx.x == 0) {
    offsets[expert] = total_before;
    if (expert == gridDim.x - 1) offsets[expert + 1] = num_pairs;
  }
  if (num_own == 0) return;
#pragma unroll 4
  for (int first = begin; first < end; first += kWarp) {
    const int pair = first + lane;
    const bool mine = expert_at(pair) == expert;
    const unsigned all = __ballot_sync(0xffffffffu, mine);
    if (mine) {
      const int at = place + __popc(all & ((1u << lane) - 1));
      tokens[at] = pair / k;
      places[pair] = at;
    }
    place += __popc(all);
  }
}

// A block takes one part of one token's row.
template <bool kAligned>
__global__ void __launch_bounds__(kCombineThreads)
    combine_experts_kernel(Rows<const float> y, const int32_t* places, Rows<const float> weights,
                           Rows<float> out, int k, int width, int parts) {
  __shared__ int sorted_places[kMaxChoices];
  __shared__ float sorted_weights[kMaxChoices];
  wait_for_inputs();
  const int token = blockIdx.x / parts;
  const int i = 4 * ((blockIdx.x % parts) * kCombineThreads + threadIdx.x);
  places += static_cast<int64_t>(token) * k;
  // Places ascend with the expert.
  for (int choice = threadIdx.x; choice < k; choice += kCombineThreads) {
    const int own = places[choice];
    int rank = 0;
    for (int other = 0; other < k; ++other) rank += places[other] < own;
    sorted_places[rank] = own;
    sorted_weights[rank] = weights[token][choice];
  }
  __syncthreads();
  if (i >= width) return;
  float4 sum{};
#pragma unroll 4
  for (int n = 0; n < k; ++n) {
    const float4 v = load4<kAligned>(y[sorted_places[n]], i, width);
    const float w = sorted_weights[n];
    // Products are rounded before they are added, as the reference does.
    const float4 term{__fmul_rn(v.x, w), __fmul_rn(v.y, w), __fmul_rn(v.z, w), __fmul_rn(v.w, w)};
    sum = n == 0 ? term
                 : float4{__fadd_rn(sum.x, term.x), __fadd_rn(sum.y, term.y),
                          __fadd_rn(sum.z, term.z), __fadd_rn(sum.w, term.w)};
  }
  store4<kAligned>(out[token], i, width, sum);
}

}  // namespace

void top_k_experts(Stream& stream, const TensorView& logits, const TensorView& expert_scale,
                   const TensorView& experts, const TensorView& weights, RouterSoftmax softmax) {
  const int num_experts = static_cast<int>(logits.dim(1));
  const auto run = [&](auto kernel) {
    launch(stream, kernel, static_cast<unsigned>(ceil_divide<int64_t>(logits.dim(0), kRouterWarps)),
           kRouterWarps * kWarp, 0, rows_of<const float>(logits),
           expert_scale.empty() ? nullptr : expert_scale.data<float>(), rows_of<int32_t>(experts),
           rows_of<float>(weights), num_experts, static_cast<int>(experts.dim(1)), logits.dim(0),
           softmax == RouterSoftmax::kChosen);
  };
  BRAID_CHECK(num_experts <= 64 * kWarp, "a router of {} experts", num_experts);
  if (num_experts <= 4 * kWarp) {
    run(top_k_kernel<4>);
  } else if (num_experts <= 16 * kWarp) {
    run(top_k_kernel<16>);
  } else {
    run(top_k_kernel<64>);
  }
  stream.cuda().finish_op("top_k_experts");
}

void group_by_expert(Stream& stream, const TensorView& experts, const ExpertGroups& groups) {
  const int num_experts = static_cast<int>(groups.offsets.dim(0)) - 1;
  launch(stream, group_kernel, static_cast<unsigned>(num_experts), kGroupWarps * kWarp, 0,
         rows_of<const int32_t>(experts), static_cast<int>(experts.dim(1)),
         static_cast<int>(groups.tokens.num_elements()), groups.offsets.data<int32_t>(),
         groups.tokens.data<int32_t>(), groups.places.data<int32_t>());
  stream.cuda().finish_op("group_by_expert");
}

void combine_experts(Stream& stream, const TensorView& y, const ExpertGroups& groups,
                     const TensorView& experts, const TensorView& weights, const TensorView& out) {
  const int width = static_cast<int>(out.dim(1));
  const int parts = ceil_divide(width, 4 * kCombineThreads);
  const int k = static_cast<int>(experts.dim(1));
  BRAID_CHECK(k <= kMaxChoices, "a choice of {} experts", k);
  with_alignment(rows_are_aligned(y, out), [&](auto aligned) {
    launch(stream, combine_experts_kernel<decltype(aligned)::value>,
           static_cast<unsigned>(out.dim(0) * parts), kCombineThreads, 0, rows_of<const float>(y),
           groups.places.data<int32_t>(), rows_of<const float>(weights), rows_of<float>(out), k,
           width, parts);
  });
  stream.cuda().finish_op("combine_experts");
}

}  // namespace braid::cuda

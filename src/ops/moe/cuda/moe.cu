#include <type_traits>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/row_vectors.cuh"
#include "ops/moe/cuda/top_k.cuh"

namespace braid::cuda {
namespace {

constexpr int kRouterWarps = 4;
constexpr int kGroupWarps = 8;
constexpr int kRouteThreads = 1024;
constexpr int kMaxRouteExperts = 512;
constexpr int kCombineThreads = 256;
constexpr int kMaxChoices = 256;

struct RouterArguments {
  Rows<const float> logits;
  const float* expert_scale;  // or null
  Rows<int32_t> experts;
  Rows<float> weights;
  int num_experts, k;
  int64_t tokens;
  bool over_chosen;
};

// By a warp. Leaves what it chose in `ids`, too, unless that is null.
template <int kPerLane>
__device__ void route_token(const RouterArguments& args, int64_t token, int lane, int* ids) {
  const float* logits = args.logits[token];
  WarpTopK<kPerLane> all;
  all.load(logits, args.num_experts, lane);
  int32_t* chosen = args.experts[token];
  float* weights = args.weights[token];
  float largest = 0, sum = 0;
  for (int i = 0; i < args.k; ++i) {
    const Choice choice = all.take_next(lane);
    if (i == 0) largest = choice.logit;
    if (args.over_chosen) sum += expf(choice.logit - largest);
    if (lane == 0) {
      chosen[i] = choice.expert;
      weights[i] = choice.logit;
      if (ids != nullptr) ids[i] = choice.expert;
    }
  }
  if (!args.over_chosen) {
    for (int i = lane; i < args.num_experts; i += kWarp) sum += expf(logits[i] - largest);
    sum = warp_sum(sum);
  }
  __syncwarp();
  for (int i = lane; i < args.k; i += kWarp) {
    float weight = expf(weights[i] - largest) / sum;
    if (args.expert_scale != nullptr) weight *= args.expert_scale[chosen[i]];
    weights[i] = weight;
  }
}

template <int kPerLane>
__global__ void __launch_bounds__(kRouterWarps* kWarp) top_k_kernel(RouterArguments args) {
  wait_for_inputs();
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kRouterWarps + threadIdx.x / kWarp;
  if (token < args.tokens) route_token<kPerLane>(args, token, threadIdx.x % kWarp, nullptr);
}

// One block routes all tokens and sorts their pairs, one a thread.
template <int kPerLane>
__global__ void __launch_bounds__(kRouteThreads)
    route_kernel(RouterArguments args, int32_t* offsets, int32_t* tokens, int32_t* places) {
  constexpr int kWarps = kRouteThreads / kWarp;
  __shared__ int ids[kRouteThreads];
  __shared__ int starts[kMaxRouteExperts];
  // Pairs of each expert among those of a warp.
  __shared__ unsigned char counts[kWarps][kMaxRouteExperts];
  __shared__ int warp_totals[kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int i = threadIdx.x; i < kWarps * kMaxRouteExperts / 4; i += kRouteThreads) {
    reinterpret_cast<unsigned*>(counts)[i] = 0;
  }
  wait_for_inputs();
  for (int token = warp; token < args.tokens; token += kWarps) {
    route_token<kPerLane>(args, token, lane, ids + token * args.k);
  }
  __syncthreads();
  const int pair = threadIdx.x;
  const bool is_pair = pair < args.tokens * args.k;
  const int id = is_pair ? ids[pair] : -1;
  const unsigned same = __match_any_sync(0xffffffffu, id);
  const int rank = __popc(same & ((1u << lane) - 1));
  if (is_pair && rank == 0) counts[warp][id] = static_cast<unsigned char>(__popc(same));
  __syncthreads();
  int own = 0;
  if (threadIdx.x < args.num_experts) {
    for (int w = 0; w < kWarps; ++w) own += counts[w][threadIdx.x];
  }
  int before = own;  // of the lanes up to this one
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, before, offset);
    if (lane >= offset) before += other;
  }
  if (lane == kWarp - 1) warp_totals[warp] = before;
  before -= own;
  __syncthreads();
  for (int w = 0; w < warp; ++w) before += warp_totals[w];
  if (threadIdx.x < args.num_experts) {
    starts[threadIdx.x] = before;
    offsets[threadIdx.x] = before;
    if (threadIdx.x == args.num_experts - 1) offsets[args.num_experts] = before + own;
  }
  __syncthreads();
  if (!is_pair) return;
  int place = starts[id] + rank;
  for (int w = 0; w < warp; ++w) place += counts[w][id];
  tokens[place] = pair / args.k;
  places[pair] = place;
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

namespace {

RouterArguments router_arguments(const TensorView& logits, const TensorView& expert_scale,
                                 const TensorView& experts, const TensorView& weights,
                                 RouterSoftmax softmax) {
  return {.logits = rows_of<const float>(logits),
          .expert_scale = expert_scale.empty() ? nullptr : expert_scale.data<float>(),
          .experts = rows_of<int32_t>(experts),
          .weights = rows_of<float>(weights),
          .num_experts = static_cast<int>(logits.dim(1)),
          .k = static_cast<int>(experts.dim(1)),
          .tokens = logits.dim(0),
          .over_chosen = softmax == RouterSoftmax::kChosen};
}

}  // namespace

void top_k_experts(Stream& stream, const TensorView& logits, const TensorView& expert_scale,
                   const TensorView& experts, const TensorView& weights, RouterSoftmax softmax) {
  const RouterArguments args = router_arguments(logits, expert_scale, experts, weights, softmax);
  const auto run = [&](auto kernel) {
    launch(stream, kernel, static_cast<unsigned>(ceil_divide<int64_t>(args.tokens, kRouterWarps)),
           kRouterWarps * kWarp, 0, args);
  };
  BRAID_CHECK(args.num_experts <= 64 * kWarp, "a router of {} experts", args.num_experts);
  if (args.num_experts <= 4 * kWarp) {
    run(top_k_kernel<4>);
  } else if (args.num_experts <= 16 * kWarp) {
    run(top_k_kernel<16>);
  } else {
    run(top_k_kernel<64>);
  }
  stream.cuda().finish_op("top_k_experts");
}

bool route_to_experts(Stream& stream, const TensorView& logits, const TensorView& expert_scale,
                      const TensorView& experts, const TensorView& weights, RouterSoftmax softmax,
                      const ExpertGroups& groups) {
  const RouterArguments args = router_arguments(logits, expert_scale, experts, weights, softmax);
  if (args.tokens * args.k > kRouteThreads || args.num_experts > kMaxRouteExperts) return false;
  const auto run = [&](auto kernel) {
    launch(stream, kernel, 1, kRouteThreads, 0, args, groups.offsets.data<int32_t>(),
           groups.tokens.data<int32_t>(), groups.places.data<int32_t>());
  };
  if (args.num_experts <= 4 * kWarp) {
    run(route_kernel<4>);
  } else {
    run(route_kernel<16>);
  }
  stream.cuda().finish_op("route_to_experts");
  return true;
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

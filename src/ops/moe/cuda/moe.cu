#include <type_traits>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/row_vectors.cuh"
#include "ops/fused/cuda/packed_rows.cuh"
#include "ops/moe/cuda/top_k.cuh"

namespace braid::cuda {
namespace {

constexpr int kRouterWarps = 4;
constexpr int kGroupWarps = 8;
constexpr int kRouteThreads = 1024;
constexpr int kMaxRouteExperts = 512;
constexpr int kCombineThreads = 256;
constexpr int kMaxChoices = kWarp;

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
  Choice own{};  // of lane i: choice i
  float largest = 0;
  for (int i = 0; i < args.k; ++i) {
    const Choice choice = all.take_next(lane);
    if (i == 0) largest = choice.logit;
    if (i == lane) own = choice;
  }
  float sum = 0;
  if (args.over_chosen) {
    sum = lane < args.k ? expf(own.logit - largest) : 0;
  } else {
    for (int i = lane; i < args.num_experts; i += kWarp) sum += expf(logits[i] - largest);
  }
  sum = warp_sum(sum);
  if (lane >= args.k) return;
  float weight = expf(own.logit - largest) / sum;
  if (args.expert_scale != nullptr) weight *= args.expert_scale[own.expert];
  chosen[lane] = own.expert;
  weights[lane] = weight;
  if (ids != nullptr) ids[lane] = own.expert;
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

// Four neighbouring pairs' experts; beyond the end, one that is none.
template <bool kFlat>
__device__ __forceinline__ int4 experts_at(Rows<const int32_t> experts, int k, int pair, int end) {
  if constexpr (kFlat) {
    return pair < end ? *reinterpret_cast<const int4*>(experts.data + pair)
                      : int4{INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX};
  } else {
    const auto at = [&](int i) { return i < end ? experts[i / k][i % k] : INT32_MAX; };
    return {at(pair), at(pair + 1), at(pair + 2), at(pair + 3)};
  }
}

// A block finds the pairs of one expert, in order: its warps take stretches of the list. kFlat: the
// rows of experts follow each other, and pairs come by fours.
template <bool kFlat>
__global__ void __launch_bounds__(kGroupWarps* kWarp)
    group_kernel(Rows<const int32_t> experts, int k, int num_pairs, int32_t* offsets,
                 int32_t* tokens, int32_t* places) {
  constexpr int kStep = 4 * kWarp;
  __shared__ int before[kGroupWarps], own[kGroupWarps];
  const int expert = blockIdx.x;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int stretch = ceil_divide(ceil_divide(num_pairs, kGroupWarps), kStep) * kStep;
  const int begin = min(warp * stretch, num_pairs);
  const int end = min(begin + stretch, num_pairs);
  wait_for_inputs();
  int num_before = 0, num_own = 0;
#pragma unroll 4
  for (int first = begin; first < end; first += kStep) {
    const int4 ids = experts_at<kFlat>(experts, k, first + 4 * lane, end);
    num_before += (ids.x < expert) + (ids.y < expert) + (ids.z < expert) + (ids.w < expert);
    num_own += (ids.x == expert) + (ids.y == expert) + (ids.z == expert) + (ids.w == expert);
  }
  num_before = __reduce_add_sync(0xffffffffu, num_before);
  num_own = __reduce_add_sync(0xffffffffu, num_own);
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
    if (expert == static_cast<int>(gridDim.x) - 1) offsets[expert + 1] = num_pairs;
  }
  if (num_own == 0) return;
  const unsigned earlier = (1u << lane) - 1;
#pragma unroll 4
  for (int first = begin; first < end; first += kStep) {
    const int pair = first + 4 * lane;
    const int4 ids = experts_at<kFlat>(experts, k, pair, end);
    const bool mine[4] = {ids.x == expert, ids.y == expert, ids.z == expert, ids.w == expert};
    if (!__any_sync(0xffffffffu, mine[0] || mine[1] || mine[2] || mine[3])) continue;
    int at = place;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned all = __ballot_sync(0xffffffffu, mine[i]);
      at += __popc(all & earlier);
      place += __popc(all);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!mine[i]) continue;
      tokens[at] = (pair + i) / k;
      places[pair + i] = at++;
    }
  }
}

// A block takes one part of one token's row.
template <bool kAligned, typename Y>
__global__ void __launch_bounds__(kCombineThreads)
    combine_experts_kernel(Rows<const Y> y, const int32_t* places, Rows<const float> weights,
                           Rows<float> out, int k, int width, int parts) {
  __shared__ int sorted_places[kMaxChoices];
  __shared__ float sorted_weights[kMaxChoices];
  wait_for_inputs();
  const int token = blockIdx.x / parts;
  const int i = 4 * ((blockIdx.x % parts) * kCombineThreads + threadIdx.x);
  places += static_cast<int64_t>(token) * k;
  // Places ascend with the expert.
  if (threadIdx.x < kWarp) {
    const int choice = threadIdx.x;
    const int own = choice < k ? places[choice] : INT32_MAX;
    int rank = 0;
    for (int other = 0; other < k; ++other) rank += __shfl_sync(0xffffffffu, own, other) < own;
    if (choice < k) {
      sorted_places[rank] = own;
      sorted_weights[rank] = weights[token][choice];
    }
  }
  __syncthreads();
  if (i >= width) return;
  float4 sum{};
#pragma unroll 4
  for (int n = 0; n < k; ++n) {
    const float4 v = load4_of<kAligned>(y[sorted_places[n]], i, width);
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
  BRAID_CHECK(args.num_experts <= 64 * kWarp && args.k <= kMaxChoices,
              "a router of {} of {} experts", args.k, args.num_experts);
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
  if (args.k > kMaxChoices || args.tokens * args.k > kRouteThreads ||
      args.num_experts > kMaxRouteExperts)
    return false;
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
  const bool flat = experts.contiguous() && experts.num_elements() % 4 == 0 &&
                    reinterpret_cast<uintptr_t>(experts.raw()) % 16 == 0;
  launch(stream, flat ? group_kernel<true> : group_kernel<false>,
         static_cast<unsigned>(num_experts), kGroupWarps * kWarp, 0,
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
  const auto run = [&](auto kernel, auto rows) {
    launch(stream, kernel, static_cast<unsigned>(out.dim(0) * parts), kCombineThreads, 0, rows,
           groups.places.data<int32_t>(), rows_of<const float>(weights), rows_of<float>(out), k,
           width, parts);
  };
  const bool aligned = rows_are_aligned(y, out);
  if (y.dtype() == DType::kBF16) {
    BRAID_CHECK(aligned, "rounded rows of {}", width);
    run(combine_experts_kernel<true, uint16_t>, rounded_rows_of(y));
  } else {
    with_alignment(aligned, [&](auto constant) {
      run(combine_experts_kernel<decltype(constant)::value, float>, rows_of<const float>(y));
    });
  }
  stream.cuda().finish_op("combine_experts");
}

}  // namespace braid::cuda

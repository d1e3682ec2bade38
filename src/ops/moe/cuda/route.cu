#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/moe/cuda/few_choices.cuh"
#include "tensor/cuda/stream_state.h"

namespace braid::cuda {
namespace {

constexpr int kRouterWarps = 4;
constexpr int kMaxChoices = kWarp;
// Of the one block that routes and groups.
constexpr int kRouteWarps = 32;
constexpr int kMaskTokens = 32, kMasks = 2;
constexpr int kMaxRouteTokens = kMasks * kMaskTokens;
constexpr int kMaxRouteExperts = 512;

struct RouterArguments {
  Rows<const float> logits;
  const float* expert_scale;  // or null
  Rows<int32_t> experts;
  Rows<float> weights;
  int num_experts, k;
  int64_t tokens;
  bool over_chosen;
};

// By a warp; returns choice i to lane i < k.
template <int kPerLane>
__device__ __forceinline__ int route_token(const RouterArguments& args, int64_t token, int lane,
                                           ChoiceRoom& room) {
  const float* logits = args.logits[token];
  const Choice own = WarpTopK<kPerLane>(logits, args.num_experts, lane).choose(args.k, room);
  const float weight =
      weight_of(own, logits, args.num_experts, args.k, args.over_chosen, args.expert_scale);
  if (lane < args.k) {
    args.experts[token][lane] = own.expert;
    args.weights[token][lane] = weight;
  }
  return own.expert;
}

template <int kPerLane>
__global__ void __launch_bounds__(kRouterWarps* kWarp) top_k_kernel(RouterArguments args) {
  __shared__ ChoiceRoom rooms[kRouterWarps];
  wait_for_inputs();
  const int warp = threadIdx.x / kWarp;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kRouterWarps + warp;
  if (token < args.tokens) route_token<kPerLane>(args, token, threadIdx.x % kWarp, rooms[warp]);
}

// One block routes all tokens, a warp each, and groups their pairs. A token chooses an expert once
// at most, so that one bit for each of its tokens tells how many pairs an expert has and the place
// of each. As many threads as experts, at least.
template <int kPerLane>
__global__ void __launch_bounds__(kRouteWarps* kWarp, 1)
    route_kernel(RouterArguments args, int32_t* offsets, int32_t* tokens, int32_t* places) {
  __shared__ ChoiceRoom rooms[kRouteWarps];
  __shared__ unsigned masks[kMasks][kMaxRouteExperts];
  __shared__ int starts[kMaxRouteExperts];
  __shared__ int ids[kMaxRouteTokens][kMaxChoices];
  __shared__ int totals[kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int warps = blockDim.x / kWarp;
#pragma unroll 1
  for (int i = threadIdx.x; i < kMasks * kMaxRouteExperts; i += blockDim.x) masks[0][i] = 0;
  wait_for_inputs();
  __syncthreads();
#pragma unroll 1
  for (int token = warp; token < args.tokens; token += warps) {
    const int id = route_token<kPerLane>(args, token, lane, rooms[warp]);
    if (lane < args.k) {
      ids[token][lane] = id;
      atomicOr(&masks[token / kMaskTokens][id], 1u << token % kMaskTokens);
    }
  }
  __syncthreads();
  const int expert = threadIdx.x;
  int own = 0;
  if (expert < args.num_experts) own = __popc(masks[0][expert]) + __popc(masks[1][expert]);
  int through = own;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, through, distance);
    if (lane >= distance) through += other;
  }
  if (lane == kWarp - 1) totals[warp] = through;
  __syncthreads();
  const int before = __reduce_add_sync(0xffffffffu, lane < warp ? totals[lane] : 0);
  if (expert < args.num_experts) {
    starts[expert] = before + through - own;
    offsets[expert] = before + through - own;
    if (expert == args.num_experts - 1) offsets[expert + 1] = before + through;
  }
  __syncthreads();
  if (lane >= args.k) return;
#pragma unroll 1
  for (int token = warp; token < args.tokens; token += warps) {
    const int id = ids[token][lane];
    const unsigned earlier = (1u << token % kMaskTokens) - 1;
    int place = starts[id];
    if (token < kMaskTokens) {
      place += __popc(masks[0][id] & earlier);
    } else {
      place += __popc(masks[0][id]) + __popc(masks[1][id] & earlier);
    }
    tokens[place] = token;
    places[token * args.k + lane] = place;
  }
}

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

bool can_route_in_place(const Stream& stream, const TensorView& logits, int64_t k) {
  // A warp takes most of a microsecond for a token of many experts, one after another.
  constexpr int64_t kManyExperts = 256;
  const int64_t tokens = logits.dim(0), experts = logits.dim(1);
  return stream.cuda().overlaps_kernels() && !stream.cuda().deterministic() &&
         tokens <= (experts < kManyExperts ? kMostFewTokens : 1) && tokens * k <= kMostFewPairs &&
         k <= kMaxChoices && experts <= kMostFewExperts;
}

bool route_to_experts(Stream& stream, const TensorView& logits, const TensorView& expert_scale,
                      const TensorView& experts, const TensorView& weights, RouterSoftmax softmax,
                      const ExpertGroups& groups) {
  const RouterArguments args = router_arguments(logits, expert_scale, experts, weights, softmax);
  if (args.k > kMaxChoices || args.tokens > kMaxRouteTokens ||
      args.num_experts > kMaxRouteExperts) {
    return false;
  }
  const int warps = std::max(ceil_divide(args.num_experts, kWarp),
                             std::min(static_cast<int>(args.tokens), kRouteWarps));
  const auto run = [&](auto kernel) {
    launch(stream, kernel, 1, warps * kWarp, 0, args, groups.offsets.data<int32_t>(),
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

}  // namespace braid::cuda

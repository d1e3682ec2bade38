#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/row_vectors.cuh"
#include "ops/fused/cuda/packed_rows.cuh"

namespace braid::cuda {
namespace {

constexpr int kGroupWarps = kWarp;
constexpr int kKeptSteps = 5;
constexpr int kCombineThreads = 256;
constexpr int kMaxChoices = kWarp;

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

// A block finds the pairs of one expert, in order: its warps take stretches of the list, of which
// they keep kKeptSteps steps in registers, so that pairs are read once and all at the same time,
// but for very many. kFlat: the rows of experts follow each other, and pairs come by fours.
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
  const int unkept = begin + kKeptSteps * kStep;
  wait_for_inputs();
  int4 kept[kKeptSteps];
#pragma unroll
  for (int i = 0; i < kKeptSteps; ++i) {
    kept[i] = experts_at<kFlat>(experts, k, begin + i * kStep + 4 * lane, end);
  }
  int num_before = 0, num_own = 0;
  const auto count = [&](int4 ids) {
    num_before += (ids.x < expert) + (ids.y < expert) + (ids.z < expert) + (ids.w < expert);
    num_own += (ids.x == expert) + (ids.y == expert) + (ids.z == expert) + (ids.w == expert);
  };
#pragma unroll
  for (int i = 0; i < kKeptSteps; ++i) count(kept[i]);
#pragma unroll 1
  for (int first = unkept; first < end; first += kStep) {
    count(experts_at<kFlat>(experts, k, first + 4 * lane, end));
  }
  num_before = __reduce_add_sync(0xffffffffu, num_before);
  num_own = __reduce_add_sync(0xffffffffu, num_own);
  if (lane == 0) {
    before[warp] = num_before;
    own[warp] = num_own;
  }
  __syncthreads();
  const int total_before = __reduce_add_sync(0xffffffffu, before[lane]);
  int place = total_before + __reduce_add_sync(0xffffffffu, lane < warp ? own[lane] : 0);
  if (threadIdx.x == 0) {
    offsets[expert] = total_before;
    if (expert == static_cast<int>(gridDim.x) - 1) offsets[expert + 1] = num_pairs;
  }
  if (num_own == 0) return;
  const unsigned earlier = (1u << lane) - 1;
  const auto put = [&](int4 ids, int pair) {
    const bool mine[4] = {ids.x == expert, ids.y == expert, ids.z == expert, ids.w == expert};
    if (!__any_sync(0xffffffffu, mine[0] || mine[1] || mine[2] || mine[3])) return;
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
  };
#pragma unroll
  for (int i = 0; i < kKeptSteps; ++i) put(kept[i], begin + i * kStep + 4 * lane);
#pragma unroll 1
  for (int first = unkept; first < end; first += kStep) {
    const int pair = first + 4 * lane;
    put(experts_at<kFlat>(experts, k, pair, end), pair);
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

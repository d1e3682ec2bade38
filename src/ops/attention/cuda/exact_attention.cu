#include <cuda_bf16.h>

#include "base/check.h"
#include "ops/attention/cuda/attention_call.h"
#include "ops/attention/cuda/paged_store.cuh"

namespace braid::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kQueries = 8;  // heads of a KV head that a block takes
constexpr int kKeys = 32;    // of a tile, aligned to absolute positions
constexpr int kWarpKeys = kKeys / kWarps;

struct ExactArguments {
  Rows<const float> q;
  Rows<float> out;
  KvTable table;
  int group, head_dim, window;
  float scale;
};

// A block computes up to kQueries heads of one row. kDims: elements of a head a thread sums.
template <typename T, int kDims>
__global__ void __launch_bounds__(kThreads)
    exact_kernel(ExactArguments args, PagedRows<const T> keys, PagedRows<const T> values) {
  extern __shared__ float queries[];  // [kQueries, head_dim]
  __shared__ float weights[kQueries][kKeys];
  __shared__ float factors[kQueries], sums[kQueries];
  __shared__ int64_t offsets[kKeys];
  __shared__ float key_scales[kKeys], value_scales[kKeys];  // of int8
  constexpr bool kScaled = sizeof(T) == 1;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int head_dim = args.head_dim;
  const int parts = ceil_divide(args.group, kQueries);
  const int kv_head = blockIdx.y / parts;
  const int first_query = blockIdx.y % parts * kQueries;
  const int num_queries = min(kQueries, args.group - first_query);
  const int first_element = (kv_head * args.group + first_query) * head_dim;
  wait_for_inputs();

  const DeviceSequence sequence = args.table.sequences[args.table.row_sequences[blockIdx.x]];
  const int32_t* pages = args.table.pages(sequence);
  const int row = blockIdx.x - sequence.first_entry;
  const int end = sequence.first_position + row + 1;
  const int begin = args.window > 0 ? max(0, end - args.window) : 0;
  const float* q = args.q[sequence.first_row + row] + first_element;
  for (int i = threadIdx.x; i < kQueries * head_dim; i += kThreads) {
    queries[i] = i < num_queries * head_dim ? q[i] : 0;
  }

  // Of queries warp and warp + kWarps.
  float largest[kQueries / kWarps], sum[kQueries / kWarps];
#pragma unroll
  for (int i = 0; i < kQueries / kWarps; ++i) largest[i] = -INFINITY, sum[i] = 0;
  float weighted[kQueries][kDims] = {};

  for (int start = begin / kKeys * kKeys; start < end; start += kKeys) {
    const int first = max(begin - start, 0), last = min(end - start, kKeys);
    if (threadIdx.x < kKeys) {
      const int key = threadIdx.x;
      offsets[key] =
          key >= first && key < last
              ? keys.offset(pages, sequence.num_pages, start + key) + keys.head_offset(kv_head)
              : 0;
      if constexpr (kScaled) {
        const bool seen = key >= first && key < last;
        key_scales[key] = seen ? keys.scales[offsets[key] / head_dim] : 0;
        value_scales[key] = seen ? values.scales[offsets[key] / head_dim] : 0;
      }
    }
    __syncthreads();
    for (int key = max(first, warp * kWarpKeys); key < min(last, (warp + 1) * kWarpKeys); ++key) {
      const T* at = keys.data + offsets[key];
      float dots[kQueries] = {};
      for (int d = lane; d < head_dim; d += kWarp) {
        const float x = static_cast<float>(at[d]);
#pragma unroll
        for (int i = 0; i < kQueries; ++i) dots[i] = fmaf(queries[i * head_dim + d], x, dots[i]);
      }
#pragma unroll
      for (int i = 0; i < kQueries; ++i) {
        const float dot = warp_sum(dots[i]);
        if (lane != 0) continue;
        weights[i][key] = dot * args.scale;
        if constexpr (kScaled) weights[i][key] *= key_scales[key];
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kQueries / kWarps; ++i) {
      const int query = warp + i * kWarps;
      const float score = lane >= first && lane < last ? weights[query][lane] : -INFINITY;
      const float top = fmaxf(largest[i], warp_max(score));
      const float factor = expf(largest[i] - top);
      const float weight = expf(score - top);
      sum[i] = sum[i] * factor + warp_sum(weight);
      largest[i] = top;
      weights[query][lane] = kScaled ? weight * value_scales[lane] : weight;
      if (lane == 0) factors[query] = factor;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
#pragma unroll
      for (int j = 0; j < kDims; ++j) weighted[i][j] *= factors[i];
    }
    for (int key = first; key < last; ++key) {
      const T* at = values.data + offsets[key];
#pragma unroll
      for (int j = 0; j < kDims; ++j) {
        const int d = threadIdx.x + j * kThreads;
        const float x = d < head_dim ? static_cast<float>(at[d]) : 0;
#pragma unroll
        for (int i = 0; i < kQueries; ++i)
          weighted[i][j] = fmaf(weights[i][key], x, weighted[i][j]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kQueries / kWarps; ++i) {
    if (lane == 0) sums[warp + i * kWarps] = sum[i];
  }
  __syncthreads();
  float* out = args.out[sequence.first_row + row] + first_element;
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
#pragma unroll
    for (int j = 0; j < kDims; ++j) {
      const int d = threadIdx.x + j * kThreads;
      if (i < num_queries && d < head_dim) out[i * head_dim + d] = weighted[i][j] / sums[i];
    }
  }
}

template <typename T, int kDims>
void run(const AttentionCall& call) {
  const ExactArguments args{.q = rows_of<const float>(call.q),
                            .out = rows_of<float>(call.out),
                            .table = call.table,
                            .group = call.group(),
                            .head_dim = call.head_dim(),
                            .window = static_cast<int>(call.options.window),
                            .scale = call.options.scale};
  const dim3 grid(static_cast<unsigned>(call.table.num_rows),
                  static_cast<unsigned>(call.kv_heads() * ceil_divide(call.group(), kQueries)));
  launch(call.stream, exact_kernel<T, kDims>, grid, kThreads,
         sizeof(float) * kQueries * call.head_dim(), args,
         PagedRows<const T>(call.cache.keys, call.cache.key_scales),
         PagedRows<const T>(call.cache.values, call.cache.value_scales));
}

template <typename T>
void run(const AttentionCall& call) {
  BRAID_CHECK(call.head_dim() <= 1024, "heads of {}", call.head_dim());
  if (call.head_dim() <= kThreads) {
    run<T, 1>(call);
  } else if (call.head_dim() <= 4 * kThreads) {
    run<T, 4>(call);
  } else {
    run<T, 8>(call);
  }
}

}  // namespace

void exact_attention(const AttentionCall& call) {
  if (call.cache.keys.dtype() == DType::kF32) {
    run<float>(call);
  } else if (call.cache.keys.dtype() == DType::kI8) {
    run<int8_t>(call);
  } else {
    run<__nv_bfloat16>(call);
  }
}

}  // namespace braid::cuda

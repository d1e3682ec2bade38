#include "ops/cuda/launch.cuh"
#include "ops/cuda/token_ops.h"

namespace braid::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kFeedThreads = 128;

struct Arguments {
  Rows<const float> computed;
  const int32_t* places;
  Rows<const int32_t> groups;
  const int32_t* token_order;
  Rows<float> logits;
  int k, size, vocab;
};

// Grid: rows.
__global__ void __launch_bounds__(kThreads) spread_kernel(Arguments args) {
  wait_for_inputs();
  __shared__ float of_warps[kThreads / kWarp];
  const int row = blockIdx.x;
  const int32_t* places = args.places + static_cast<int64_t>(row) * args.k;
  const int num_computed = args.k * args.size;
  float smallest = INFINITY;
  for (int i = threadIdx.x; i < num_computed; i += kThreads) {
    smallest = fminf(smallest, args.computed[places[i / args.size]][i % args.size]);
  }
  smallest = -warp_max(-smallest);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = smallest;
  __syncthreads();
  smallest = -warp_max(-of_warps[threadIdx.x % kWarp]);
  float* out = args.logits[row];
  for (int i = threadIdx.x; i < args.vocab; i += kThreads) out[i] = smallest - 1;
  __syncthreads();
  for (int i = threadIdx.x; i < num_computed; i += kThreads) {
    const int choice = i / args.size, j = i % args.size;
    out[args.token_order[args.groups[row][choice] * args.size + j]] =
        args.computed[places[choice]][j];
  }
}

// Grid: ids.
__global__ void feed_kernel(Rows<const int32_t> chosen, const int32_t* rows, int32_t* ids,
                            int num_ids) {
  wait_for_inputs();
  const int i = blockIdx.x * kFeedThreads + threadIdx.x;
  if (i < num_ids && rows[i] >= 0) ids[i] = max(chosen[rows[i]][0], 0);
}

}  // namespace

void spread_logits(Stream& stream, const TensorView& computed, const TensorView& places,
                   const TensorView& groups, const IndexList& token_order,
                   const TensorView& logits) {
  const Arguments args{.computed = rows_of<const float>(computed),
                       .places = places.data<int32_t>(),
                       .groups = rows_of<const int32_t>(groups),
                       .token_order = on_device(stream.cuda(), token_order),
                       .logits = rows_of<float>(logits),
                       .k = static_cast<int>(groups.dim(1)),
                       .size = static_cast<int>(computed.dim(1)),
                       .vocab = static_cast<int>(logits.dim(1))};
  launch(stream, spread_kernel, static_cast<unsigned>(logits.dim(0)), kThreads, 0, args);
  stream.cuda().finish_op("spread_logits");
}

void feed_tokens(Stream& stream, const TensorView& chosen, const IndexList& rows,
                 const TensorView& ids) {
  const int count = static_cast<int>(ids.dim(0));
  launch(stream, feed_kernel, static_cast<unsigned>(ceil_divide(count, kFeedThreads)), kFeedThreads,
         0, rows_of<const int32_t>(chosen), on_device(stream.cuda(), rows), ids.data<int32_t>(),
         count);
  stream.cuda().finish_op("feed_tokens");
}

}  // namespace braid::cuda

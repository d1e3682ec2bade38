#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"

namespace braid::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kParts = kWarp;  // blocks of a row

struct Part {
  float value;
  int32_t index;  // -1: nothing above -inf
  int32_t bad;
};

__device__ bool before(const Part& a, const Part& b) {
  return a.value > b.value || (a.value == b.value && a.index >= 0 && a.index < b.index);
}

__device__ Part warp_best(Part part) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Part other{__shfl_xor_sync(0xffffffffu, part.value, offset),
                     __shfl_xor_sync(0xffffffffu, part.index, offset),
                     __shfl_xor_sync(0xffffffffu, part.bad, offset)};
    const int bad = part.bad | other.bad;
    if (before(other, part)) part = other;
    part.bad = bad;
  }
  return part;
}

// Grid: parts, rows. The last block of a row to be done finds the best of its parts.
__global__ void __launch_bounds__(kThreads)
    scan_kernel(Rows<const float> logits, int width, Part* parts, int32_t* arrivals,
                LogitsSummary* summaries) {
  wait_for_inputs();
  const float* row = logits[blockIdx.y];
  const int each = (width + kParts - 1) / kParts;
  const int begin = blockIdx.x * each, end = min(begin + each, width);
  Part best{-INFINITY, -1, 0};
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kThreads) {
    const float x = row[i];
    best.bad |= (__float_as_uint(x) & 0x7f800000u) == 0x7f800000u;
    if (x > best.value) best.value = x, best.index = i;
  }
  __shared__ Part of_warps[kThreads / kWarp];
  __shared__ bool last;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  best = warp_best(best);
  if (lane == 0) of_warps[warp] = best;
  __syncthreads();
  if (warp != 0) return;
  best = warp_best(lane < kThreads / kWarp ? of_warps[lane] : Part{-INFINITY, -1, 0});
  Part* of_row = parts + blockIdx.y * kParts;
  if (lane == 0) {
    of_row[blockIdx.x] = best;
    __threadfence();
    last = atomicAdd(&arrivals[blockIdx.y], 1) == kParts - 1;
  }
  __syncwarp();
  if (!last) return;
  __threadfence();
  best = warp_best(
      {__ldcg(&of_row[lane].value), __ldcg(&of_row[lane].index), __ldcg(&of_row[lane].bad)});
  if (lane == 0) {
    summaries[blockIdx.y] = {best.index, best.bad == 0 ? 1 : 0};
    arrivals[blockIdx.y] = 0;
  }
}

}  // namespace

void scan_logits(Stream& stream, Workspace& workspace, const TensorView& logits,
                 const TensorView& summaries) {
  const int rows = static_cast<int>(logits.dim(0));
  constexpr int kPartWords = sizeof(Part) / sizeof(int32_t);
  for (int first = 0; first < rows; first += StreamState::kNumCounters) {
    const int count = std::min(rows - first, StreamState::kNumCounters);
    const TensorView parts = workspace.take(DType::kI32, {count, kParts * kPartWords});
    const TensorView part = logits.rows(first, count);
    launch(stream, scan_kernel, dim3(kParts, static_cast<unsigned>(count)), kThreads, 0,
           rows_of<const float>(part), static_cast<int>(logits.dim(1)),
           reinterpret_cast<Part*>(parts.raw()), stream.cuda().counters(),
           reinterpret_cast<LogitsSummary*>(summaries.row<int32_t>(first)));
  }
  stream.cuda().finish_op("scan_logits");
}

}  // namespace braid::cuda

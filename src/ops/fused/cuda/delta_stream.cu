#include "ops/cuda/async_copy.cuh"
#include "ops/fused/cuda/delta_step.cuh"

namespace braid::cuda {
namespace {

constexpr int kBuffers = 3;
constexpr int kStateFloats = kMostDim * kMostDim, kStateBytes = kStateFloats * sizeof(float);
constexpr int kAllThreads = kStepThreads + kWarp;  // with the warp that brings states

// The value heads of this block's sequences in turn: the members of a key head follow one another.
struct Units {
  int pair;  // of a key head and a sequence
  int member = 0;
  int key_head, head;
  DeviceRecurrentRows rows;

  __device__ Units(const StepArguments& args, float heads_inverse) : pair(blockIdx.x) {
    find(args, heads_inverse);
  }
  __device__ void advance(const StepArguments& args, float heads_inverse, int num_pairs) {
    if (++member == args.ratio) {
      member = 0;
      pair += gridDim.x;
    }
    if (pair < num_pairs) find(args, heads_inverse);
  }
  __device__ float* state(const StepArguments& args) const {
    return args.delta.state(rows.slot, head);
  }

 private:
  __device__ void find(const StepArguments& args, float heads_inverse) {
    // Exact: pairs are less than 2¹⁶.
    const int sequence = static_cast<int>((static_cast<float>(pair) + 0.5f) * heads_inverse);
    key_head = pair - sequence * args.delta.key_heads;
    head = args.value_head(key_head, member);
    rows = args.delta.sequences[sequence];
  }
};

struct Barriers {
  uint64_t full[kBuffers], done[kBuffers];
};

// A state from shared memory, in the background; and until such copies have read it, or are there.
__device__ __forceinline__ void write_state(float* to, uint32_t from) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;" ::"l"(to),
      "r"(from), "n"(kStateBytes)
      : "memory");
#endif
}
__device__ __forceinline__ void wait_for_reads() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_writes() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

// By one lane: brings the states of the units in turn, and takes them back.
__device__ void bring_states(const StepArguments& args, Barriers& barriers, uint32_t buffers,
                             int units, int num_pairs, float heads_inverse) {
  Units brought(args, heads_inverse), taken = brought;
#pragma unroll 1
  for (int u = 0; u < units + kBuffers; ++u) {
    const int buffer = u % kBuffers;
    if (u == kBuffers) wait_for_inputs();
    if (u >= kBuffers) {
      wait_barrier(shared_address(&barriers.done[buffer]), (u / kBuffers - 1) % 2);
      write_state(taken.state(args), buffers + buffer * kStateBytes);
      taken.advance(args, heads_inverse, num_pairs);
    }
    if (u >= units) continue;
    if (u >= kBuffers) wait_for_reads();
    const uint32_t full = shared_address(&barriers.full[buffer]);
    if (brought.rows.fresh) {
      arrive(full);
    } else {
      arrive_and_expect(full, kStateBytes);
      copy_bytes(buffers + buffer * kStateBytes, brought.state(args), kStateBytes, full);
    }
    brought.advance(args, heads_inverse, num_pairs);
  }
  wait_for_writes();
}

__device__ __forceinline__ void sync_steps() {
  asm volatile("bar.sync 1, %0;" ::"n"(kStepThreads) : "memory");
}

// What a thread fetches of a unit while the one before is computed: its channel's (threads below
// kMostDim: of the values, then of query and key), or an element of z; and the first columns of x,
// W_b and W_a.
struct Fetched {
  float taps[kMostWidth], kept[kMostWidth - 1], newest;
  uint2 x, b, a;
  float dt_bias, rate;
  int channel;
};

__global__ void __launch_bounds__(kAllThreads, 1)
    delta_stream_kernel(const __grid_constant__ StepArguments args, int num_pairs,
                        float heads_inverse) {
  __shared__ Barriers barriers;
  __shared__ __align__(16) float mixed[3 * kMostDim];  // values, query, key
  __shared__ __align__(16) float gate[2][kMostDim], results[2][kMostDim];
  __shared__ __align__(16) float norm[kMostDim];
  __shared__ float partial[2][kStepWarps];  // of b and a
  extern __shared__ __align__(128) unsigned char buffers[];
  const DeltaArguments& delta = args.delta;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int pairs = (num_pairs - static_cast<int>(blockIdx.x) + gridDim.x - 1) / gridDim.x;
  const int units = pairs * args.ratio;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kBuffers; ++i) {
      init_barrier(shared_address(&barriers.full[i]), 1);
      init_barrier(shared_address(&barriers.done[i]), kStepWarps);
    }
    publish_barriers();
  }
  if (threadIdx.x < kMostDim) norm[threadIdx.x] = args.norm[threadIdx.x];
  __syncthreads();
  if (warp == kStepWarps) {
    if (lane == 0) {
      bring_states(args, barriers, shared_address(buffers), units, num_pairs, heads_inverse);
    }
    return;
  }

  const int part = threadIdx.x / kMostDim, of_part = threadIdx.x % kMostDim;
  const int old_rows = args.conv_width - 1;
  Fetched next{};
  const auto fetch = [&](const Units& unit) {
    const int token = unit.rows.first_row;
    next.dt_bias = delta.dt_bias[unit.head];
    next.rate = delta.rate[unit.head];
    if (part == 3) {
      next.newest = args.z[token][unit.head * kMostDim + of_part];
    } else if (part == 0 || unit.member == 0) {
      next.channel = of_part + (part == 0 ? 2 * delta.key_heads + unit.head
                                          : (part - 1) * delta.key_heads + unit.key_head) *
                                   kMostDim;
      const float* kept = args.kept_rows[unit.rows.slot] + next.channel;
      next.newest = args.raw[token][next.channel];
#pragma unroll
      for (int j = 0; j < kMostWidth; ++j) {
        if (j > old_rows) break;
        next.taps[j] = args.conv[next.channel * args.conv_width + j];
        if (j == kMostWidth - 1 || j == old_rows) break;
        next.kept[j] =
            unit.rows.fresh ? 0 : kept[int64_t{unit.rows.num_replayed + j} * args.channels];
      }
    }
    next.x = next.b = next.a = uint2{0, 0};
    if (4 * threadIdx.x < args.cols) {
      const int64_t at = int64_t{unit.head} * args.cols + 4 * threadIdx.x;
      next.x = *reinterpret_cast<const uint2*>(args.x[token] + 4 * threadIdx.x);
      next.b = *reinterpret_cast<const uint2*>(args.b_weight + at);
      next.a = *reinterpret_cast<const uint2*>(args.a_weight + at);
    }
  };
  wait_for_inputs();
  Units ahead(args, heads_inverse);
  // Begins with what is fetched for the first unit.
#pragma unroll 1
  for (int u = -1; u < units; ++u) {
    const Units unit = ahead;
    const int token = unit.rows.first_row;
    const float dt_bias = next.dt_bias, rate = next.rate;
    if (u >= 0) {
      if (part == 3) {
        gate[u % 2][of_part] = silu(next.newest);
      } else if (part == 0 || unit.member == 0) {
        float* const kept = args.kept_rows[unit.rows.slot] + next.channel;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < kMostWidth; ++j) {
          if (j > old_rows) break;
          const float input = j == old_rows ? next.newest : next.kept[min(j, kMostWidth - 2)];
          sum = j == 0 ? input * next.taps[0] : fmaf(next.taps[j], input, sum);
          if (j > 0) kept[int64_t{j - 1} * args.channels] = input;
        }
        mixed[threadIdx.x] = silu(sum);
      }
      float products[2] = {dot(next.b.y, next.x.y, dot(next.b.x, next.x.x, 0)),
                           dot(next.a.y, next.x.y, dot(next.a.x, next.x.x, 0))};
#pragma unroll 1
      for (int c = 4 * (threadIdx.x + kStepThreads); c < args.cols; c += 4 * kStepThreads) {
        const uint2 x = *reinterpret_cast<const uint2*>(args.x[token] + c);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint16_t* weights =
              (i == 0 ? args.b_weight : args.a_weight) + int64_t{unit.head} * args.cols;
          const uint2 w = *reinterpret_cast<const uint2*>(weights + c);
          products[i] = dot(w.y, x.y, dot(w.x, x.x, products[i]));
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float sum = warp_sum(products[i]);
        if (lane == 0) partial[i][warp] = sum;
      }
      ahead.advance(args, heads_inverse, num_pairs);
    }
    if (u + 1 < units) fetch(ahead);
    if (u < 0) continue;
    sync_steps();

    float gate_sum = partial[lane / kStepWarps][lane % kStepWarps];
#pragma unroll
    for (int offset = kStepWarps / 2; offset > 0; offset /= 2) {
      gate_sum += __shfl_xor_sync(0xffffffffu, gate_sum, offset);
    }
    const float beta = delta_beta(__shfl_sync(0xffffffffu, gate_sum, 0));
    const float decay = delta_decay(__shfl_sync(0xffffffffu, gate_sum, kStepWarps), dt_bias, rate);
    const auto* queries = reinterpret_cast<const float4*>(mixed + kMostDim);
    const auto* keys = reinterpret_cast<const float4*>(mixed + 2 * kMostDim);
    const TokenScales scales(queries, keys, kMostDim, delta.epsilon);

    const int buffer = u % kBuffers;
    auto* const rows = reinterpret_cast<float4*>(buffers + buffer * kStateBytes);
    const auto place = [&](int r, int j) {
      return LaneState::row_of(r) * (kMostDim / 4) + LaneState::vector(j);
    };
    LaneState state;
    wait_barrier(shared_address(&barriers.full[buffer]), u / kBuffers % 2);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        state.rows[r][j] = unit.rows.fresh ? float4{} : rows[place(r, j)];
      }
    }
#pragma unroll 1
    for (int t = 0; t < unit.rows.num_replayed; ++t) {
      state.replay(delta, unit.rows.slot, t, unit.head, unit.key_head, kMostDim, kMostDim);
    }
    float key_dots[kRows], query_dots[kRows], updates[kRows];
    state.dots(queries, scales.query, query_dots);
    state.dots(keys, scales.key, key_dots);
    float out = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float value = mixed[LaneState::row_of(r)];
      updates[r] = __fmul_rn(beta, __fmaf_rn(-decay, key_dots[r], value));
      if (r == lane % kRowLanes) out = fmaf(updates[r], scales.key_query, decay * query_dots[r]);
    }
    if (lane % kRowLanes < kRows) results[u % 2][LaneState::row_of(lane % kRowLanes)] = out;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      state.update(j, LaneState::scaled(keys[LaneState::vector(j)], scales.key), decay, updates);
#pragma unroll
      for (int r = 0; r < kRows; ++r) rows[place(r, j)] = state.rows[r][j];
    }
    publish_to_copies();
    __syncwarp();
    if (lane == 0) arrive(shared_address(&barriers.done[buffer]));
    sync_steps();
    if (warp == 0) {
      finish_head(args, results[u % 2], gate[u % 2], norm, token, unit.head, kMostDim);
    }
  }
}

}  // namespace

void stream_delta_steps(Stream& stream, const StepArguments& args, int num_sequences) {
  constexpr size_t kBytes = size_t{kBuffers} * kStateBytes;
  static const bool allowed = [] {
    BRAID_CUDA_CHECK(cudaFuncSetAttribute(delta_stream_kernel,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(kBytes)));
    return true;
  }();
  (void)allowed;
  const int num_pairs = num_sequences * args.delta.key_heads;
  const int blocks = std::min(num_pairs, stream.cuda().num_multiprocessors());
  launch(stream, delta_stream_kernel, static_cast<unsigned>(blocks), kAllThreads, kBytes, args,
         num_pairs, 1 / static_cast<float>(args.delta.key_heads));
}

}  // namespace braid::cuda

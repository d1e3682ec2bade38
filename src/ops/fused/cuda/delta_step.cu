#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/row_vectors.cuh"
#include "ops/elementwise/cuda/activations.cuh"
#include "ops/fused/cuda/packed_rows.cuh"
#include "ops/fused/cuda/row_math.cuh"
#include "ops/gated_delta/cuda/delta_rows.cuh"
#include "ops/norm/cuda/rms_norm.cuh"

namespace braid::cuda {
namespace {

// Warps that compute a value head. Lanes that share a row of the state, rows of a warp at once, and
// rows of a lane: those of gated_delta(), so that all sums have its order.
constexpr int kStepWarps = 16, kStepThreads = kStepWarps * kWarp;
constexpr int kRowLanes = 8, kLaneRows = kWarp / kRowLanes, kRows = 2;
constexpr int kMostDim = 128;
constexpr int kVectors = kMostDim / (4 * kRowLanes);
static_assert(kStepWarps * kLaneRows * kRows == kMostDim && 2 * kStepWarps == kWarp);
constexpr int kMostWidth = 4;  // of the convolution

struct StepArguments {
  DeltaArguments delta;
  Rows<const float> raw, z;
  const float* conv;
  int conv_width;
  Rows<float> kept_rows;
  int channels;
  Rows<const uint16_t> x;
  const uint16_t* b_weight;
  const uint16_t* a_weight;
  int cols;
  const float* norm;
  float norm_epsilon;
  Rows<uint16_t> packed;  // the result; null: in
  Rows<float> out;
  int ratio;

  __device__ int value_head(int key_head, int member) const {
    return delta.grouped ? key_head * ratio + member : member * delta.key_heads + key_head;
  }
};

// The part of a value head's state that a lane holds in registers.
struct LaneState {
  float4 rows[kRows][kVectors];

  __device__ static int vector(int j) { return j * kRowLanes + threadIdx.x % kRowLanes; }
  __device__ static int row_of(int r) {
    return (threadIdx.x / kWarp * kLaneRows + threadIdx.x % kWarp / kRowLanes) * kRows + r;
  }
  // Row r ← decay · row r + updates[r] · key, as gated_delta() does it.
  __device__ void update(int j, float4 k, float decay, const float (&updates)[kRows]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float4& s = rows[r][j];
      s.x = __fmaf_rn(updates[r], k.x, __fmul_rn(decay, s.x));
      s.y = __fmaf_rn(updates[r], k.y, __fmul_rn(decay, s.y));
      s.z = __fmaf_rn(updates[r], k.z, __fmul_rn(decay, s.z));
      s.w = __fmaf_rn(updates[r], k.w, __fmul_rn(decay, s.w));
    }
  }
  __device__ static float row_sum(float x) {
#pragma unroll
    for (int offset = kRowLanes / 2; offset > 0; offset /= 2) {
      x += __shfl_xor_sync(0xffffffffu, x, offset);
    }
    return x;
  }
  __device__ static float4 scaled(float4 v, float factor) {
    return {v.x * factor, v.y * factor, v.z * factor, v.w * factor};
  }
  // row · (vectors · scale)
  __device__ void dots(const float4* vectors, float scale, float (&sums)[kRows]) const {
    float4 parts[kRows] = {};
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const float4 v = scaled(vectors[vector(j)], scale);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 s = rows[r][j], p = parts[r];
        parts[r] = {fmaf(s.x, v.x, p.x), fmaf(s.y, v.y, p.y), fmaf(s.z, v.z, p.z),
                    fmaf(s.w, v.w, p.w)};
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sums[r] = row_sum((parts[r].x + parts[r].y) + (parts[r].z + parts[r].w));
    }
  }
  // A logged token.
  __device__ void replay(const DeltaArguments& delta, int slot, int t, int head, int key_head,
                         int key_dim, int value_dim) {
    const float* logged = delta.logged_update(slot, t, head);
    const float* logged_key = delta.logged_key(slot, t, key_head);
    const float decay = *delta.logged_decay(slot, t, head);
    float updates[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) updates[r] = row_of(r) < value_dim ? logged[row_of(r)] : 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      update(j, load4<true>(logged_key, 4 * vector(j), key_dim), decay, updates);
    }
  }
};

// What a token is for a value head: by each warp for itself. query, key: [kMostDim] in shared
// memory, as they leave the convolution.
struct TokenScales {
  float key, query, key_query;

  __device__ TokenScales(const float4* queries, const float4* keys, int key_dim, float epsilon) {
    const int lane = threadIdx.x % kWarp;
    const float4 q = queries[lane], k = keys[lane];
    const float products = fmaf(k.w, q.w, fmaf(k.z, q.z, fmaf(k.y, q.y, fmaf(k.x, q.x, 0.0f))));
    const float root = 1 / sqrtf(static_cast<float>(key_dim));
    // All sums at the same time: each is a chain of shuffles.
    const float keys_squared = warp_sum(sum_of_squares(k));
    const float queries_squared = warp_sum(sum_of_squares(q));
    const float product = warp_sum(products);
    key = l2_scale(keys_squared, epsilon, 1);
    query = l2_scale(queries_squared, epsilon, root);
    key_query = product * key * query;
  }
};

// By a warp: the norm of a head's results, gated, to the result. gates: silu(z).
__device__ __forceinline__ void finish_head(const StepArguments& args, const float* results,
                                            const float* gates, const float* norm, int token,
                                            int head, int value_dim) {
  const int i = 4 * static_cast<int>(threadIdx.x % kWarp);
  const float4 v = load4<true>(results, i, value_dim);
  const float4 w = load4<true>(norm, i, value_dim);
  const float4 z = load4<true>(gates, i, value_dim);
  const float factor = inverse_rms(warp_sum(sum_of_squares(v)), value_dim, args.norm_epsilon);
  const auto finish = [&](float x, float weight, float gate) {
    return __fmul_rn(__fmul_rn(x, factor), weight) * gate;
  };
  const float4 finished{finish(v.x, w.x, z.x), finish(v.y, w.y, z.y), finish(v.z, w.z, z.z),
                        finish(v.w, w.w, z.w)};
  if (args.packed.data == nullptr) {
    store4<true>(args.out[token] + head * value_dim, i, value_dim, finished);
  } else if (i < value_dim) {
    store_rounded(args.packed[token], head * value_dim + i, finished);
  }
}

// By each warp for itself, from what the warps have of W_b·x and W_a·x.
__device__ __forceinline__ void gates_of(const float (&partial)[2][kStepWarps], float dt_bias,
                                         float rate, float& beta, float& decay) {
  const int lane = threadIdx.x % kWarp;
  float sum = partial[lane / kStepWarps][lane % kStepWarps];
#pragma unroll
  for (int offset = kStepWarps / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  beta = __shfl_sync(0xffffffffu, delta_beta(sum), 0);
  decay = __shfl_sync(0xffffffffu, delta_decay(sum, dt_bias, rate), kStepWarps);
}

__device__ __forceinline__ void prefetch_to_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

constexpr int kMostCluster = 8;  // blocks, what every device allows
// With more of them the single ops are as fast: reading and writing the states takes the time.
constexpr size_t kMostSequences = 16;

// A block computes a value head of a sequence. Those of one key head form a cluster: all read the
// rows that were kept of its channels before one of them replaces these. kWhole: heads of kMostDim.
template <bool kWhole>
__global__ void __launch_bounds__(kStepThreads, 2)
    delta_step_kernel(const __grid_constant__ StepArguments args) {
  __shared__ __align__(16) float mixed[3 * kMostDim];  // query, key, values
  __shared__ __align__(16) float gate[kMostDim];       // silu(z)
  __shared__ __align__(16) float norm[kMostDim];
  __shared__ __align__(16) float results[kMostDim];
  __shared__ float next_kept[kMostWidth - 1][3 * kMostDim];
  __shared__ float partial[2][kStepWarps];  // of b and a
  const DeltaArguments& delta = args.delta;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int key_dim = kWhole ? kMostDim : delta.key_dim;
  const int value_dim = kWhole ? kMostDim : delta.value_dim;
  const int key_head = blockIdx.x / args.ratio, member = blockIdx.x % args.ratio;
  const int head = args.value_head(key_head, member);
  // What earlier steps left is read ahead.
  const DeviceRecurrentRows rows = delta.sequences[blockIdx.y];
  const int token = rows.first_row;
  const float dt_bias = delta.dt_bias[head], rate = delta.rate[head];
  float* const states = delta.state(rows.slot, head);
  LaneState state;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int row = LaneState::row_of(r), i = 4 * LaneState::vector(j);
      state.rows[r][j] = float4{};
      if (!rows.fresh && row < value_dim) {
        state.rows[r][j] = load4<true>(states + row * key_dim, i, key_dim);
      }
    }
  }

  // A thread's channel: where it lies in `mixed`, and in the rows of the convolution.
  const int part = threadIdx.x / kMostDim, of_part = threadIdx.x % kMostDim;
  const bool own_channel = part < 3 && of_part < (part < 2 ? key_dim : value_dim);
  const int channel = of_part + (part < 2 ? (part * delta.key_heads + key_head) * key_dim
                                          : 2 * delta.key_heads * key_dim + head * value_dim);
  const int old_rows = args.conv_width - 1;
  float convolved = 0, last_tap = 0;
  if (own_channel) {
    const float* taps = args.conv + channel * args.conv_width;
    const float* kept = args.kept_rows[rows.slot] + channel;
    last_tap = taps[old_rows];
#pragma unroll
    for (int j = 0; j < kMostWidth - 1; ++j) {
      if (j >= old_rows) break;
      const float old = rows.fresh ? 0 : kept[int64_t{rows.num_replayed + j} * args.channels];
      convolved = j == 0 ? old * taps[0] : fmaf(taps[j], old, convolved);
      if (j > 0) next_kept[j - 1][threadIdx.x] = old;
    }
  } else if (part == 3 && of_part < value_dim) {
    norm[of_part] = args.norm[of_part];
  }
  const uint16_t* const b_weight = args.b_weight + int64_t{head} * args.cols;
  const uint16_t* const a_weight = args.a_weight + int64_t{head} * args.cols;
#pragma unroll 1
  for (int c = 64 * threadIdx.x; c < args.cols; c += 64 * kStepThreads) {
    prefetch_to_l2(b_weight + c);
    prefetch_to_l2(a_weight + c);
  }
#pragma unroll 1
  for (int t = 0; t < rows.num_replayed; ++t) {
    state.replay(delta, rows.slot, t, head, key_head, key_dim, value_dim);
  }
  let_next_begin();
  wait_for_inputs();

  const float newest = own_channel ? args.raw[token][channel] : 0;
  float products[2] = {};  // b, a
#pragma unroll 1
  for (int c = 4 * threadIdx.x; c < args.cols; c += 4 * kStepThreads) {
    const uint2 x = *reinterpret_cast<const uint2*>(args.x[token] + c);
    const uint2 b = *reinterpret_cast<const uint2*>(b_weight + c);
    const uint2 a = *reinterpret_cast<const uint2*>(a_weight + c);
    products[0] = dot(b.y, x.y, dot(b.x, x.x, products[0]));
    products[1] = dot(a.y, x.y, dot(a.x, x.x, products[1]));
  }
  if (part < 3) {
    mixed[threadIdx.x] = own_channel ? silu(fmaf(last_tap, newest, convolved)) : 0;
    next_kept[old_rows - 1][threadIdx.x] = newest;
  } else if (of_part < value_dim) {
    gate[of_part] = silu(args.z[token][head * value_dim + of_part]);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float sum = warp_sum(products[i]);
    if (lane == 0) partial[i][warp] = sum;
  }
  __syncthreads();
#if __CUDA_ARCH__ >= 900
  // What was read of the kept rows lies in registers, and nothing was stored: a release, a fence
  // for the whole device, is not needed.
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif

  const auto* queries = reinterpret_cast<const float4*>(mixed);
  const auto* keys = reinterpret_cast<const float4*>(mixed + kMostDim);
  const TokenScales scales(queries, keys, key_dim, delta.epsilon);
  float beta, decay;
  gates_of(partial, dt_bias, rate, beta, decay);
  float key_dots[kRows], query_dots[kRows], updates[kRows];
  state.dots(queries, scales.query, query_dots);
  state.dots(keys, scales.key, key_dots);
  float out = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float value = mixed[2 * kMostDim + LaneState::row_of(r)];
    updates[r] = __fmul_rn(beta, __fmaf_rn(-decay, key_dots[r], value));
    if (r == lane % kRowLanes) out = fmaf(updates[r], scales.key_query, decay * query_dots[r]);
  }
  if (lane % kRowLanes < kRows) results[LaneState::row_of(lane % kRowLanes)] = out;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = 4 * LaneState::vector(j);
    state.update(j, LaneState::scaled(keys[LaneState::vector(j)], scales.key), decay, updates);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = LaneState::row_of(r);
      if (row < value_dim) {
        store4<true>(states + row * key_dim, i, key_dim, state.rows[r][j]);
      }
    }
  }
  __syncthreads();
  if (warp == 0) finish_head(args, results, gate, norm, token, head, value_dim);
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  if (!own_channel || (part < 2 && member > 0)) return;
  float* const kept = args.kept_rows[rows.slot] + channel;
#pragma unroll
  for (int j = 1; j < kMostWidth; ++j) {
    if (j <= old_rows) kept[int64_t{j - 1} * args.channels] = next_kept[j - 1][threadIdx.x];
  }
}

bool plain_rows(const Weight& w) {
  return w.format->id == FormatId::kBF16 && w.cols() % 8 == 0 &&
         reinterpret_cast<uintptr_t>(w.data) % 16 == 0;
}

}  // namespace

bool can_delta_step(Stream& stream, const DeltaStepCall& call, const RecurrentLayer& layer,
                    std::span<const RecurrentRows> sequences) {
  const TensorView& packed = call.x.packed;
  const auto fits = [](int64_t dim) { return dim <= kMostDim && dim % 4 == 0; };
  return sequences.size() <= kMostSequences && stream.cuda().overlaps_kernels() &&
         !stream.cuda().deterministic() && call.rounding.precision != ActivationPrecision::kF32 &&
         packed.rank() == 2 && packed.row_stride() % 8 == 0 && plain_rows(call.b_weight) &&
         plain_rows(call.a_weight) && fits(call.key_dim) && fits(call.value_dim) &&
         call.conv.dim(1) >= 2 && call.conv.dim(1) <= kMostWidth &&
         call.value_heads / call.key_heads <= kMostCluster &&
         call.value_heads * call.value_dim % kPackedColumns == 0 &&
         rows_are_aligned(call.z, layer.states) && aligned_weights(call.norm) &&
         (layer.max_logged_tokens() == 0 || rows_are_aligned(layer.logged_keys));
}

LinearInput delta_step(Stream& stream, Workspace& workspace, const DeltaStepCall& call,
                       const RecurrentLayer& layer, std::span<const RecurrentRows> sequences) {
  const int64_t tokens = call.raw.dim(0), width = call.value_heads * call.value_dim;
  const bool rounds = call.rounding.precision == ActivationPrecision::kBF16;
  PackedRows packed;
  TensorView out;
  if (rounds) {
    packed = PackedRows(workspace, tokens, width);
  } else {
    out = workspace.take(DType::kF32, {tokens, width});
  }
  StepArguments args{
      .raw = rows_of<const float>(call.raw),
      .z = rows_of<const float>(call.z),
      .conv = call.conv.data<float>(),
      .conv_width = static_cast<int>(call.conv.dim(1)),
      .kept_rows = rows_of<float>(layer.conv_rows),
      .channels = static_cast<int>(call.raw.dim(1)),
      .x = {static_cast<const uint16_t*>(call.x.packed.raw()), call.x.packed.row_stride()},
      .b_weight = reinterpret_cast<const uint16_t*>(call.b_weight.data),
      .a_weight = reinterpret_cast<const uint16_t*>(call.a_weight.data),
      .cols = static_cast<int>(call.b_weight.cols()),
      .norm = call.norm.data<float>(),
      .norm_epsilon = call.norm_epsilon,
      .ratio = static_cast<int>(call.value_heads / call.key_heads)};
  if (rounds) {
    args.packed = packed.rows();
  } else {
    args.out = rows_of<float>(out);
  }
  args.delta.rate = call.rate.data<float>();
  args.delta.dt_bias = call.dt_bias.data<float>();
  args.delta.states = layer.states.data<float>();
  args.delta.sequences = recurrent_table(stream.cuda(), sequences);
  args.delta.key_heads = static_cast<int>(call.key_heads);
  args.delta.key_dim = static_cast<int>(call.key_dim);
  args.delta.value_heads = static_cast<int>(call.value_heads);
  args.delta.value_dim = static_cast<int>(call.value_dim);
  args.delta.max_logged = static_cast<int>(layer.max_logged_tokens());
  args.delta.epsilon = call.epsilon;
  args.delta.grouped = call.order == ValueHeadOrder::kGrouped;
  if (args.delta.max_logged > 0) {
    args.delta.logged_keys = layer.logged_keys.data<float>();
    args.delta.logged_updates = layer.logged_updates.data<float>();
    args.delta.logged_decays = layer.logged_decays.data<float>();
  }
  const bool whole = call.key_dim == kMostDim && call.value_dim == kMostDim;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(args.ratio), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(call.value_heads), static_cast<unsigned>(sequences.size()));
  config.blockDim = dim3(kStepThreads);
  config.stream = stream.cuda().handle();
  config.attrs = attributes;
  config.numAttrs = 2;
  BRAID_CUDA_CHECK(cudaLaunchKernelEx(
      &config, whole ? delta_step_kernel<true> : delta_step_kernel<false>, args));
  stream.cuda().finish_op("delta_step", true);
  if (!rounds) return cuda::prepare_linear_input(stream, workspace, out, call.rounding);
  return packed.input(TensorView(call.raw.raw(), DType::kF32, {tokens, width}, call.raw.device()));
}

}  // namespace braid::cuda

#include <cuda_bf16.h>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/row_vectors.cuh"
#include "ops/elementwise/cuda/activations.cuh"
#include "ops/fused/cuda/packed_rows.cuh"
#include "ops/gated_delta/cuda/delta_rows.cuh"
#include "ops/norm/cuda/rms_norm.cuh"

namespace braid::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * kWarp;
// Lanes that share a row of the state, rows of a warp at once, and rows of a lane: those of
// gated_delta(), so that all sums have its order.
constexpr int kRowLanes = 8;
constexpr int kLaneRows = kWarp / kRowLanes;
constexpr int kRows = 2;
constexpr int kMostDim = 128;
constexpr int kVectors = kMostDim / (4 * kRowLanes);
static_assert(kWarps * kLaneRows * kRows == kMostDim);
constexpr int kMostWidth = 4;    // of the convolution
constexpr int kMostCluster = 8;  // blocks, what every device allows
// Warps that have no channels.
constexpr int kWarpOfZ = kWarps - 2, kWarpOfGates = kWarps - 1;
static_assert(2 * kWarps == kWarp);
static_assert(3 * kMostDim <= kWarpOfZ * kWarp);

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
};

__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
  for (int offset = kRowLanes / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}

__device__ __forceinline__ float dot(uint32_t a, uint32_t b, float sum) {
  const float2 u = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&a));
  const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&b));
  return fmaf(u.y, v.y, fmaf(u.x, v.x, sum));
}

__device__ __forceinline__ float4 scaled(float4 v, float factor) {
  return {v.x * factor, v.y * factor, v.z * factor, v.w * factor};
}

// A block computes a value head of a sequence. Those of one key head form a cluster: all read the
// rows that were kept of its channels before one of them replaces these. kWhole: heads of kMostDim.
template <bool kWhole>
__global__ void __launch_bounds__(kThreads, 2)
    delta_step_kernel(const __grid_constant__ StepArguments args) {
  __shared__ __align__(16) float mixed[3 * kMostDim];  // query, key, values
  __shared__ __align__(16) float gate[kMostDim];       // silu(z)
  __shared__ __align__(16) float results[kMostDim];
  __shared__ float next_kept[kMostWidth - 1][3 * kMostDim];
  __shared__ float partial[2][kWarps];  // of b and a
  __shared__ float beta_and_decay[2];
  const DeltaArguments& delta = args.delta;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int key_dim = kWhole ? kMostDim : delta.key_dim;
  const int value_dim = kWhole ? kMostDim : delta.value_dim;
  const int key_head = blockIdx.x / args.ratio, member = blockIdx.x % args.ratio;
  const int head =
      delta.grouped ? static_cast<int>(blockIdx.x) : member * delta.key_heads + key_head;
  // What earlier steps left, and the input of W_b and W_a, are read ahead.
  const DeviceRecurrentRows rows = delta.sequences[blockIdx.y];
  const int token = rows.first_row;

  const auto vector = [&](int j) { return j * kRowLanes + lane % kRowLanes; };
  const auto row_of = [&](int r) { return (warp * kLaneRows + lane / kRowLanes) * kRows + r; };
  float* const states = delta.state(rows.slot, head);
  float4 state[kRows][kVectors];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      state[r][j] = float4{};
      if (!rows.fresh && row_of(r) < value_dim) {
        state[r][j] = load4<true>(states + int64_t{row_of(r)} * key_dim, 4 * vector(j), key_dim);
      }
    }
  }
  // Row r ← decay · row r + updates[r] · key, as gated_delta() does it.
  const auto update = [&](int j, float4 k, float decay, const float(&updates)[kRows]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float4& s = state[r][j];
      s.x = __fmaf_rn(updates[r], k.x, __fmul_rn(decay, s.x));
      s.y = __fmaf_rn(updates[r], k.y, __fmul_rn(decay, s.y));
      s.z = __fmaf_rn(updates[r], k.z, __fmul_rn(decay, s.z));
      s.w = __fmaf_rn(updates[r], k.w, __fmul_rn(decay, s.w));
    }
  };

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
  }
  float products[2] = {};  // b, a
  for (int c = 4 * threadIdx.x; c < args.cols; c += 4 * kThreads) {
    const uint2 x = *reinterpret_cast<const uint2*>(args.x[token] + c);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint16_t* weights =
          (i == 0 ? args.b_weight : args.a_weight) + int64_t{head} * args.cols;
      const uint2 w = *reinterpret_cast<const uint2*>(weights + c);
      products[i] = dot(w.y, x.y, dot(w.x, x.x, products[i]));
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float sum = warp_sum(products[i]);
    if (lane == 0) partial[i][warp] = sum;
  }
  __syncthreads();
  if (warp == kWarpOfGates) {
    float sum = partial[lane / kWarps][lane % kWarps];
#pragma unroll
    for (int offset = kWarps / 2; offset > 0; offset /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    }
    if (lane == 0) beta_and_decay[0] = delta_beta(sum);
    if (lane == kWarps) {
      beta_and_decay[1] = delta_decay(sum, delta.dt_bias[head], delta.rate[head]);
    }
  }
#pragma unroll 1
  for (int t = 0; t < rows.num_replayed; ++t) {
    const float* logged = delta.logged_update(rows.slot, t, head);
    const float* logged_key = delta.logged_key(rows.slot, t, key_head);
    const float decay = *delta.logged_decay(rows.slot, t, head);
    float updates[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) updates[r] = row_of(r) < value_dim ? logged[row_of(r)] : 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      update(j, load4<true>(logged_key, 4 * vector(j), key_dim), decay, updates);
    }
  }
  wait_for_inputs();

  if (warp == kWarpOfZ) {
    const float4 z = load4<true>(args.z[token] + head * value_dim, 4 * lane, value_dim);
    reinterpret_cast<float4*>(gate)[lane] = {silu(z.x), silu(z.y), silu(z.z), silu(z.w)};
  }
  const float newest = own_channel ? args.raw[token][channel] : 0;
  if (part < 3) {
    mixed[threadIdx.x] = own_channel ? silu(fmaf(last_tap, newest, convolved)) : 0;
    next_kept[old_rows - 1][threadIdx.x] = newest;
  }
  __syncthreads();
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif

  // Every warp finds the lengths of the query and the key for itself.
  const auto* queries = reinterpret_cast<const float4*>(mixed);
  const auto* keys = reinterpret_cast<const float4*>(mixed + kMostDim);
  float key_scale, query_scale, key_query;
  {
    const float4 q = queries[lane], k = keys[lane];
    const float products = fmaf(k.w, q.w, fmaf(k.z, q.z, fmaf(k.y, q.y, fmaf(k.x, q.x, 0.0f))));
    const float root = 1 / sqrtf(static_cast<float>(key_dim));
    key_scale = l2_scale(warp_sum(sum_of_squares(k)), delta.epsilon, 1);
    query_scale = l2_scale(warp_sum(sum_of_squares(q)), delta.epsilon, root);
    key_query = warp_sum(products) * key_scale * query_scale;
  }
  const float beta = beta_and_decay[0], decay = beta_and_decay[1];
  // One after the other: both at once take more registers than there are.
  const auto dots = [&](const float4* vectors, float scale, float(&sums)[kRows]) {
    float4 parts[kRows] = {};
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const float4 v = scaled(vectors[vector(j)], scale);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 s = state[r][j], p = parts[r];
        parts[r] = {fmaf(s.x, v.x, p.x), fmaf(s.y, v.y, p.y), fmaf(s.z, v.z, p.z),
                    fmaf(s.w, v.w, p.w)};
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sums[r] = row_sum((parts[r].x + parts[r].y) + (parts[r].z + parts[r].w));
    }
  };
  float key_dots[kRows], query_dots[kRows], updates[kRows];
  dots(queries, query_scale, query_dots);
  dots(keys, key_scale, key_dots);
  float out = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float value = mixed[2 * kMostDim + row_of(r)];
    updates[r] = __fmul_rn(beta, __fmaf_rn(-decay, key_dots[r], value));
    if (r == lane % kRowLanes) out = fmaf(updates[r], key_query, decay * query_dots[r]);
  }
  if (lane % kRowLanes < kRows) results[row_of(lane % kRowLanes)] = out;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    update(j, scaled(keys[vector(j)], key_scale), decay, updates);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row_of(r) < value_dim) {
        store4<true>(states + int64_t{row_of(r)} * key_dim, 4 * vector(j), key_dim, state[r][j]);
      }
    }
  }
  __syncthreads();
  if (warp == 0) {
    const float4 v = load4<true>(results, 4 * lane, value_dim);
    const float4 w = load4<true>(args.norm, 4 * lane, value_dim);
    const float factor = inverse_rms(warp_sum(sum_of_squares(v)), value_dim, args.norm_epsilon);
    const float4 z = load4<true>(gate, 4 * lane, value_dim);
    const auto finish = [&](float x, float weight, float silu_of_z) {
      return __fmul_rn(__fmul_rn(x, factor), weight) * silu_of_z;
    };
    const float4 finished{finish(v.x, w.x, z.x), finish(v.y, w.y, z.y), finish(v.z, w.z, z.z),
                          finish(v.w, w.w, z.w)};
    if (args.packed.data == nullptr) {
      store4<true>(args.out[token] + head * value_dim, 4 * lane, value_dim, finished);
    } else if (4 * lane < value_dim) {
      store_rounded(args.packed[token], head * value_dim + 4 * lane, finished);
    }
  }
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  if (!own_channel || (part < 2 && member > 0)) return;
  float* const kept = args.kept_rows[delta.sequences[blockIdx.y].slot] + channel;
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
                    std::span<const RecurrentRows>) {
  const TensorView& packed = call.x.packed;
  const auto fits = [](int64_t dim) { return dim <= kMostDim && dim % 4 == 0; };
  return stream.cuda().overlaps_kernels() && !stream.cuda().deterministic() &&
         call.rounding.precision != ActivationPrecision::kF32 && packed.rank() == 2 &&
         packed.row_stride() % 8 == 0 && plain_rows(call.b_weight) && plain_rows(call.a_weight) &&
         fits(call.key_dim) && fits(call.value_dim) && call.conv.dim(1) >= 2 &&
         call.conv.dim(1) <= kMostWidth && call.value_heads / call.key_heads <= kMostCluster &&
         call.value_heads * call.value_dim % kPackedColumns == 0 &&
         rows_are_aligned(call.z, layer.states) &&
         reinterpret_cast<uintptr_t>(call.norm.raw()) % 16 == 0 &&
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
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(args.ratio), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(call.value_heads), static_cast<unsigned>(sequences.size()));
  config.blockDim = dim3(kThreads);
  config.stream = stream.cuda().handle();
  config.attrs = attributes;
  config.numAttrs = 2;
  const bool whole = call.key_dim == kMostDim && call.value_dim == kMostDim;
  BRAID_CUDA_CHECK(cudaLaunchKernelEx(
      &config, whole ? delta_step_kernel<true> : delta_step_kernel<false>, args));
  stream.cuda().finish_op("delta_step");
  if (!rounds) return cuda::prepare_linear_input(stream, workspace, out, call.rounding);
  return packed.input(TensorView(call.raw.raw(), DType::kF32, {tokens, width}, call.raw.device()));
}

}  // namespace braid::cuda

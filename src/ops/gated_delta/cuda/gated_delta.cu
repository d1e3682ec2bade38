// The recurrent form: a state's rows stay in registers while a sequence's tokens pass by. Form
// kChunks is computed the same way.

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/row_vectors.cuh"
#include "ops/gated_delta/cuda/delta_rows.cuh"

namespace braid::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
// Lanes that share a row of the state, and rows that a warp works on at once.
constexpr int kRowLanes = 8;
constexpr int kLaneRows = kWarp / kRowLanes;

__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
  for (int offset = kRowLanes / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}

// kKeyDim: of a row in registers, at least key_dim; kRows: rows a lane has a part of.
template <int kKeyDim, int kRows>
struct DeltaBlock {
  static constexpr int kBlockRows = kWarps * kLaneRows * kRows;
  static constexpr int kVectors = kKeyDim / (4 * kRowLanes);
  // Tokens whose keys, queries and values are fetched together.
  static constexpr int kTokens = kKeyDim > 256 ? 8 : 16;

  struct Shared {
    float4 keys[kTokens][kKeyDim / 4];
    float4 queries[kTokens][kKeyDim / 4];
    float values[kTokens][kBlockRows];
    float key_query[kTokens];  // k·q
    float decays[kTokens];
    float betas[kTokens];
  };

  float4 state[kRows][kVectors];

  __device__ static int vector_of(int j) { return j * kRowLanes + threadIdx.x % kRowLanes; }
  // Row r of this lane, of the block's.
  __device__ static int row_of(int r) {
    return (threadIdx.x / kWarp * kLaneRows + threadIdx.x % kWarp / kRowLanes) * kRows + r;
  }

  // `rows` points to the block's first row.
  template <bool kAligned>
  __device__ void load(const float* rows, int num_rows, int key_dim) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        const float* row = rows + static_cast<int64_t>(row_of(r)) * key_dim;
        const int width = row_of(r) < num_rows ? key_dim : 0;
        state[r][j] = load4<kAligned>(row, 4 * vector_of(j), width);
      }
    }
  }
  template <bool kAligned>
  __device__ void store(float* rows, int num_rows, int key_dim) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        float* row = rows + static_cast<int64_t>(row_of(r)) * key_dim;
        const int width = row_of(r) < num_rows ? key_dim : 0;
        store4<kAligned>(row, 4 * vector_of(j), width, state[r][j]);
      }
    }
  }
  __device__ void clear() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) state[r][j] = {};
    }
  }

  // Row r ← decay · row r + updates[r] · key, in the same operations whether a token is computed or
  // replayed.
  __device__ void update(const float4 (&key)[kVectors], float decay,
                         const float (&updates)[kRows]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        float4& s = state[r][j];
        const float4 k = key[j];
        s.x = __fmaf_rn(updates[r], k.x, __fmul_rn(decay, s.x));
        s.y = __fmaf_rn(updates[r], k.y, __fmul_rn(decay, s.y));
        s.z = __fmaf_rn(updates[r], k.z, __fmul_rn(decay, s.z));
        s.w = __fmaf_rn(updates[r], k.w, __fmul_rn(decay, s.w));
      }
    }
  }

  // The sums over each row's lanes of row · other.
  __device__ void dots(const float4 (&other)[kVectors], float (&sums)[kRows]) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        const float4 s = state[r][j], o = other[j];
        sum = fmaf(s.w, o.w, fmaf(s.z, o.z, fmaf(s.y, o.y, fmaf(s.x, o.x, sum))));
      }
      sums[r] = row_sum(sum);
    }
  }
};

// Grid: slices of value rows, value heads, sequences.
template <int kKeyDim, int kRows, bool kAligned>
__global__ void __launch_bounds__(kThreads) delta_kernel(DeltaArguments args) {
  using Block = DeltaBlock<kKeyDim, kRows>;
  __shared__ typename Block::Shared shared;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int head = blockIdx.y, key_head = args.key_head(head);
  const int first_value = blockIdx.x * Block::kBlockRows;
  const int num_values = min(Block::kBlockRows, args.value_dim - first_value);
  const float root = 1 / sqrtf(static_cast<float>(args.key_dim));
  // The table and the state are of earlier steps, or of copies between: they are read ahead.
  const DeviceRecurrentRows rows = args.sequences[blockIdx.z];
  if (rows.num_rows == 0) return wait_for_inputs();

  float* const states =
      args.state(rows.slot, head) + static_cast<int64_t>(first_value) * args.key_dim;
  Block block;
  if (rows.fresh) {
    block.clear();
  } else {
    block.template load<kAligned>(states, num_values, args.key_dim);
  }
  wait_for_inputs();

  for (int t = 0; t < rows.num_replayed; ++t) {
    const float* logged = args.logged_update(rows.slot, t, head) + first_value;
    const float* logged_key = args.logged_key(rows.slot, t, key_head);
    float updates[kRows];
    float4 key[Block::kVectors];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      updates[r] = Block::row_of(r) < num_values ? logged[Block::row_of(r)] : 0;
    }
#pragma unroll
    for (int j = 0; j < Block::kVectors; ++j) {
      key[j] = load4<kAligned>(logged_key, 4 * Block::vector_of(j), args.key_dim);
    }
    block.update(key, *args.logged_decay(rows.slot, t, head), updates);
  }
  // Rows that are logged leave the state as the kept tokens before them made it.
  if (rows.logged && (rows.fresh || rows.num_replayed > 0)) {
    block.template store<kAligned>(states, num_values, args.key_dim);
  }
  __syncwarp();  // the log's old updates have been read

  for (int first = 0; first < rows.num_rows; first += Block::kTokens) {
    const int count = min(Block::kTokens, rows.num_rows - first);
    __syncthreads();  // the tokens before are done
    for (int t = warp; t < count; t += kWarps) {
      const int64_t row = rows.first_row + first + t;
      const float* k = args.k[row] + key_head * args.key_dim;
      const float* q = args.q[row] + key_head * args.key_dim;
      const float key_scale = l2_scale(k, args.key_dim, args.epsilon, 1, lane);
      const float query_scale = l2_scale(q, args.key_dim, args.epsilon, root, lane);
      float* keys = reinterpret_cast<float*>(shared.keys[t]);
      float* queries = reinterpret_cast<float*>(shared.queries[t]);
      float key_query = 0;
      for (int i = lane; i < kKeyDim; i += kWarp) {
        const float key = i < args.key_dim ? k[i] * key_scale : 0;
        const float query = i < args.key_dim ? q[i] * query_scale : 0;
        keys[i] = key;
        queries[i] = query;
        key_query = fmaf(key, query, key_query);
      }
      key_query = warp_sum(key_query);
      if (lane == 0) shared.key_query[t] = key_query;
    }
    for (int i = threadIdx.x; i < count * Block::kBlockRows; i += kThreads) {
      const int t = i / Block::kBlockRows, value = i % Block::kBlockRows;
      const float* v = args.v[rows.first_row + first + t] + head * args.value_dim + first_value;
      shared.values[t][value] = value < num_values ? v[value] : 0;
    }
    if (threadIdx.x < count) {
      const int64_t row = rows.first_row + first + threadIdx.x;
      shared.decays[threadIdx.x] =
          delta_decay(args.a[row][head], args.dt_bias[head], args.rate[head]);
      shared.betas[threadIdx.x] = delta_beta(args.b[row][head]);
    }
    __syncthreads();

    for (int t = 0; t < count; ++t) {
      float4 key[Block::kVectors], query[Block::kVectors];
#pragma unroll
      for (int j = 0; j < Block::kVectors; ++j) {
        key[j] = shared.keys[t][Block::vector_of(j)];
        query[j] = shared.queries[t][Block::vector_of(j)];
      }
      const float decay = shared.decays[t], beta = shared.betas[t];
      float key_dots[kRows], query_dots[kRows], updates[kRows];
      block.dots(key, key_dots);
      block.dots(query, query_dots);
      float out = 0, update = 0;
      const int own = threadIdx.x % kRowLanes;  // the row whose results this lane stores
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        // (decay · S)ᵀ k = decay · Sᵀ k, and the same for the query: one pass over the old state.
        const float value = shared.values[t][Block::row_of(r)];
        updates[r] = __fmul_rn(beta, __fmaf_rn(-decay, key_dots[r], value));
        if (r == own) {
          update = updates[r];
          out = fmaf(updates[r], shared.key_query[t], decay * query_dots[r]);
        }
      }
      block.update(key, decay, updates);
      const int value = Block::row_of(0) + own;
      if (own < kRows && value < num_values) {
        args.out[rows.first_row + first + t][head * args.value_dim + first_value + value] = out;
        if (rows.logged) {
          args.logged_update(rows.slot, first + t, head)[first_value + value] = update;
        }
      }
    }
  }
  if (!rows.logged) block.template store<kAligned>(states, num_values, args.key_dim);
}

// Logs what the state's kernel must not overwrite while some of its blocks still replay it. Grid:
// key heads, sequences; a warp a token.
__global__ void __launch_bounds__(kThreads) log_kernel(DeltaArguments args) {
  wait_for_inputs();
  const DeviceRecurrentRows rows = args.sequences[blockIdx.y];
  if (!rows.logged) return;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int key_head = blockIdx.x;
  for (int t = warp; t < rows.num_rows; t += kWarps) {
    const int64_t row = rows.first_row + t;
    const float* k = args.k[row] + key_head * args.key_dim;
    const float scale = l2_scale(k, args.key_dim, args.epsilon, 1, lane);
    float* logged = args.logged_key(rows.slot, t, key_head);
    for (int i = lane; i < args.key_dim; i += kWarp) logged[i] = k[i] * scale;
    for (int head = lane; head < args.value_heads; head += kWarp) {
      if (args.key_head(head) != key_head) continue;
      *args.logged_decay(rows.slot, t, head) =
          delta_decay(args.a[row][head], args.dt_bias[head], args.rate[head]);
    }
  }
}

template <int kKeyDim, int kRows>
void launch_rows(Stream& stream, const DeltaArguments& args, int num_sequences) {
  const dim3 grid(
      static_cast<unsigned>(ceil_divide(args.value_dim, DeltaBlock<kKeyDim, kRows>::kBlockRows)),
      static_cast<unsigned>(args.value_heads), static_cast<unsigned>(num_sequences));
  const bool aligned = args.key_dim % 4 == 0 && reinterpret_cast<uintptr_t>(args.states) % 16 == 0;
  with_alignment(aligned, [&](auto constant) {
    launch(stream, delta_kernel<kKeyDim, kRows, decltype(constant)::value>, grid, kThreads, 0,
           args);
  });
}

// More rows a warp share the reading of keys and queries, as long as there are enough blocks.
template <int kKeyDim, int kMostRows>
void launch_rows_for(Stream& stream, const DeltaArguments& args, int num_sequences) {
  const int heads = args.value_heads * num_sequences;
  const auto blocks = [&](int rows) {
    return heads * ceil_divide(args.value_dim, kWarps * kLaneRows * rows);
  };
  const int enough = stream.cuda().num_multiprocessors();
  if (kMostRows >= 4 && blocks(4) >= enough) {
    launch_rows<kKeyDim, std::min(kMostRows, 4)>(stream, args, num_sequences);
  } else if (kMostRows >= 2 && blocks(2) >= enough) {
    launch_rows<kKeyDim, std::min(kMostRows, 2)>(stream, args, num_sequences);
  } else {
    launch_rows<kKeyDim, 1>(stream, args, num_sequences);
  }
}

}  // namespace

void gated_delta(Stream& stream, Workspace&, const GatedDeltaInputs& inputs,
                 const RecurrentLayer& layer, std::span<const RecurrentRows> sequences,
                 const GatedDeltaOptions& options, const TensorView& out) {
  DeltaArguments args{.q = rows_of<const float>(inputs.q),
                      .k = rows_of<const float>(inputs.k),
                      .v = rows_of<const float>(inputs.v),
                      .a = rows_of<const float>(inputs.a),
                      .b = rows_of<const float>(inputs.b),
                      .rate = inputs.rate.data<float>(),
                      .dt_bias = inputs.dt_bias.data<float>(),
                      .out = rows_of<float>(out),
                      .states = layer.states.data<float>(),
                      .sequences = recurrent_table(stream.cuda(), sequences),
                      .key_heads = static_cast<int>(inputs.k.dim(1)),
                      .key_dim = static_cast<int>(inputs.k.dim(2)),
                      .value_heads = static_cast<int>(inputs.v.dim(1)),
                      .value_dim = static_cast<int>(inputs.v.dim(2)),
                      .max_logged = static_cast<int>(layer.max_logged_tokens()),
                      .epsilon = options.epsilon,
                      .grouped = options.order == ValueHeadOrder::kGrouped};
  if (args.max_logged > 0) {
    args.logged_keys = layer.logged_keys.data<float>();
    args.logged_updates = layer.logged_updates.data<float>();
    args.logged_decays = layer.logged_decays.data<float>();
  }
  const int num_sequences = static_cast<int>(sequences.size());
  BRAID_CHECK(args.key_dim <= 512, "keys of {}", args.key_dim);
  if (args.key_dim <= 64) {
    launch_rows_for<64, 4>(stream, args, num_sequences);
  } else if (args.key_dim <= 128) {
    launch_rows_for<128, 4>(stream, args, num_sequences);
  } else if (args.key_dim <= 256) {
    launch_rows_for<256, 2>(stream, args, num_sequences);
  } else {
    launch_rows_for<512, 1>(stream, args, num_sequences);
  }
  if (std::any_of(sequences.begin(), sequences.end(),
                  [](const RecurrentRows& rows) { return rows.logged && rows.num_rows > 0; })) {
    launch(stream, log_kernel,
           dim3(static_cast<unsigned>(args.key_heads), static_cast<unsigned>(num_sequences)),
           kThreads, 0, args);
  }
  stream.cuda().finish_op("gated_delta");
}

}  // namespace braid::cuda

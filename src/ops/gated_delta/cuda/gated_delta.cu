// The recurrent form: a state's rows stay in registers while a sequence's tokens pass by. Chunks
// are computed the same way unless they may round (delta_chunks.h).

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/row_vectors.cuh"
#include "ops/cuda/tensor_core.cuh"
#include "ops/gated_delta/cuda/delta_chunks.h"
#include "ops/gated_delta/cuda/delta_rows.cuh"
#include "ops/norm/cuda/rms_norm.cuh"

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
  static constexpr int kTokens = kKeyDim > 256 ? 4 : 8;

  // Of the tokens at hand and of the next ones.
  struct Shared {
    float4 keys[2][kTokens][kKeyDim / 4];
    float4 queries[2][kTokens][kKeyDim / 4];
    float4 values[2][kTokens][kBlockRows / 4];
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
      float4 sum{};
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        const float4 s = state[r][j], o = other[j];
        sum = {fmaf(s.x, o.x, sum.x), fmaf(s.y, o.y, sum.y), fmaf(s.z, o.z, sum.z),
               fmaf(s.w, o.w, sum.w)};
      }
      sums[r] = row_sum((sum.x + sum.y) + (sum.z + sum.w));
    }
  }
};

// Copies n floats of a row to shared memory, zeros behind `width`.
template <bool kAligned>
__device__ __forceinline__ void copy_async(float4* to, const float* from, int i, int width) {
  if constexpr (kAligned) {
    copy16_async(shared_address(to + i), from + 4 * i, 4 * i < width);
  } else {
    const uint32_t address = shared_address(to + i);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const bool wanted = 4 * i + e < width;
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address + 4 * e),
                   "l"(wanted ? from + 4 * i + e : from), "r"(wanted ? 4 : 0)
                   : "memory");
    }
  }
}

// Begins to copy `count` tokens from row `row` on.
template <typename Block, bool kAligned>
__device__ void fetch_tokens(const DeltaArguments& args, typename Block::Shared& shared, int buffer,
                             int64_t row, int count, int key_head, int head, int first_value,
                             int num_values) {
  constexpr int kKeyVectors = Block::kVectors * kRowLanes, kValueVectors = Block::kBlockRows / 4;
  for (int i = threadIdx.x; i < count * kKeyVectors; i += kThreads) {
    const int t = i / kKeyVectors, v = i % kKeyVectors;
    const int64_t offset = static_cast<int64_t>(key_head) * args.key_dim;
    copy_async<kAligned>(shared.keys[buffer][t], args.k[row + t] + offset, v, args.key_dim);
    copy_async<kAligned>(shared.queries[buffer][t], args.q[row + t] + offset, v, args.key_dim);
  }
  for (int i = threadIdx.x; i < count * kValueVectors; i += kThreads) {
    const int t = i / kValueVectors;
    const float* values = args.v[row + t] + head * args.value_dim + first_value;
    copy_async<kAligned>(shared.values[buffer][t], values, i % kValueVectors, num_values);
  }
  commit_copies();
}

// By a warp, a token: norms its key and query where they are.
template <typename Block>
__device__ void norm_token(typename Block::Shared& shared, int buffer, int t, float epsilon,
                           float root, int lane) {
  constexpr int kKeyVectors = Block::kVectors * kRowLanes;
  constexpr int kOwn = ceil_divide(kKeyVectors, kWarp);
  float4 key[kOwn], query[kOwn];
  float keys = 0, queries = 0, products = 0;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const int v = j * kWarp + lane;
    const bool own = v < kKeyVectors;
    key[j] = own ? shared.keys[buffer][t][v] : float4{};
    query[j] = own ? shared.queries[buffer][t][v] : float4{};
    const float4 k = key[j], q = query[j];
    keys += sum_of_squares(k);
    queries += sum_of_squares(q);
    products = fmaf(k.w, q.w, fmaf(k.z, q.z, fmaf(k.y, q.y, fmaf(k.x, q.x, products))));
  }
  const float k = l2_scale(warp_sum(keys), epsilon, 1);
  const float q = l2_scale(warp_sum(queries), epsilon, root);
  products = warp_sum(products);
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const int v = j * kWarp + lane;
    if (v >= kKeyVectors) continue;
    shared.keys[buffer][t][v] = {key[j].x * k, key[j].y * k, key[j].z * k, key[j].w * k};
    shared.queries[buffer][t][v] = {query[j].x * q, query[j].y * q, query[j].z * q, query[j].w * q};
  }
  if (lane == 0) shared.key_query[t] = products * k * q;
}

// By the registers that the parts of the state, a key and a query take.
constexpr int blocks_a_multiprocessor(int key_dim, int rows) {
  if (key_dim <= 128) return rows * key_dim <= 128 ? 3 : 2;
  return key_dim <= 256 && rows == 1 ? 2 : 1;
}

// Grid: slices of value rows, value heads, sequences.
template <int kKeyDim, int kRows, bool kAligned>
__global__ void __launch_bounds__(kThreads, blocks_a_multiprocessor(kKeyDim, kRows))
    delta_kernel(DeltaArguments args) {
  using Block = DeltaBlock<kKeyDim, kRows>;
  __shared__ typename Block::Shared shared;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int head = blockIdx.y, key_head = args.key_head(head);
  const int first_value = blockIdx.x * Block::kBlockRows;
  const int num_values = min(Block::kBlockRows, args.value_dim - first_value);
  const float root = 1 / sqrtf(static_cast<float>(args.key_dim));
  // The table and the state are of earlier steps, or of copies between: they are read ahead.
  const DeviceRecurrentRows rows = args.sequences[blockIdx.z];
  if (rows.num_rows == 0 || (args.chunks && takes_chunks(rows))) return wait_for_inputs();

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

  // The last warp's lanes compute the gates, each of a token; they read them ahead, too.
  const int gate = static_cast<int>(threadIdx.x) - (kWarps - 1) * kWarp;
  float next_a = 0, next_b = 0;
  const auto fetch = [&](int first) {
    const int count = min(Block::kTokens, rows.num_rows - first);
    if (count <= 0) return;
    fetch_tokens<Block, kAligned>(args, shared, first / Block::kTokens % 2, rows.first_row + first,
                                  count, key_head, head, first_value, num_values);
    if (gate >= 0 && gate < count) {
      next_a = args.a[rows.first_row + first + gate][head];
      next_b = args.b[rows.first_row + first + gate][head];
    }
  };
  fetch(0);
  for (int first = 0; first < rows.num_rows; first += Block::kTokens) {
    const int count = min(Block::kTokens, rows.num_rows - first);
    const int buffer = first / Block::kTokens % 2;
    wait_for_copies<0>();
    __syncthreads();  // these tokens are there, those before are done
    if (gate >= 0 && gate < count) {
      shared.decays[gate] = delta_decay(next_a, args.dt_bias[head], args.rate[head]);
      shared.betas[gate] = delta_beta(next_b);
    }
    fetch(first + Block::kTokens);
    if (warp < count) norm_token<Block>(shared, buffer, warp, args.epsilon, root, lane);
    __syncthreads();

    for (int t = 0; t < count; ++t) {
      float4 key[Block::kVectors], query[Block::kVectors];
#pragma unroll
      for (int j = 0; j < Block::kVectors; ++j) {
        key[j] = shared.keys[buffer][t][Block::vector_of(j)];
        query[j] = shared.queries[buffer][t][Block::vector_of(j)];
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
        const float value =
            reinterpret_cast<const float*>(shared.values[buffer][t])[Block::row_of(r)];
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
    float* logged = args.logged_key(rows.slot, t, key_head);
    // In the order of norm_token().
    float sum = 0;
    for (int i = 4 * lane; i < args.key_dim; i += 4 * kWarp) {
      sum += sum_of_squares(load4<false>(k, i, args.key_dim));
    }
    const float scale = l2_scale(warp_sum(sum), args.epsilon, 1);
    for (int i = lane; i < args.key_dim; i += kWarp) logged[i] = k[i] * scale;
    for (int head = lane; head < args.value_heads; head += kWarp) {
      if (args.key_head(head) != key_head) continue;
      *args.logged_decay(rows.slot, t, head) =
          delta_decay(args.a[row][head], args.dt_bias[head], args.rate[head]);
    }
  }
}

template <int kKeyDim, int kRows>
void launch_rows(Stream& stream, const DeltaArguments& args, int num_sequences, bool aligned) {
  const dim3 grid(
      static_cast<unsigned>(ceil_divide(args.value_dim, DeltaBlock<kKeyDim, kRows>::kBlockRows)),
      static_cast<unsigned>(args.value_heads), static_cast<unsigned>(num_sequences));
  with_alignment(aligned, [&](auto constant) {
    launch(stream, delta_kernel<kKeyDim, kRows, decltype(constant)::value>, grid, kThreads, 0,
           args);
  });
}

// More rows a warp share the reading of keys and queries, as long as there are enough blocks; for
// few tokens it is the state that takes the time, and more blocks overlap better.
template <int kKeyDim, int kMostRows>
void launch_rows_for(Stream& stream, const DeltaArguments& args, int num_sequences,
                     int64_t most_tokens, bool aligned) {
  constexpr int64_t kFewTokens = 16;
  const int heads = args.value_heads * num_sequences;
  const auto suits = [&](int rows) {
    return kMostRows >= rows && most_tokens > kFewTokens &&
           heads * ceil_divide(args.value_dim, kWarps * kLaneRows * rows) >=
               stream.cuda().num_multiprocessors();
  };
  if (suits(4)) {
    launch_rows<kKeyDim, std::min(kMostRows, 4)>(stream, args, num_sequences, aligned);
  } else if (suits(2)) {
    launch_rows<kKeyDim, std::min(kMostRows, 2)>(stream, args, num_sequences, aligned);
  } else {
    launch_rows<kKeyDim, 1>(stream, args, num_sequences, aligned);
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
  int64_t most_tokens = 0;
  for (const RecurrentRows& rows : sequences) most_tokens = std::max(most_tokens, rows.num_rows);
  const bool aligned = args.key_dim % 4 == 0 && args.value_dim % 4 == 0 &&
                       rows_are_aligned(inputs.q, inputs.k, inputs.v, layer.states);
  BRAID_CHECK(args.key_dim <= 512, "keys of {}", args.key_dim);
  const auto in_chunks = std::count_if(sequences.begin(), sequences.end(),
                                       [](const auto& rows) { return takes_chunks(rows); });
  args.chunks = options.rounded && options.form != GatedDeltaForm::kRecurrent && in_chunks > 0 &&
                !stream.cuda().deterministic() && delta_chunks_can(args, aligned);
  if (args.chunks) {
    delta_chunks(stream, args, num_sequences);
    if (in_chunks == num_sequences) return stream.cuda().finish_op("gated_delta");
  }
  if (args.key_dim <= 64) {
    launch_rows_for<64, 4>(stream, args, num_sequences, most_tokens, aligned);
  } else if (args.key_dim <= 128) {
    launch_rows_for<128, 4>(stream, args, num_sequences, most_tokens, aligned);
  } else if (args.key_dim <= 256) {
    launch_rows_for<256, 2>(stream, args, num_sequences, most_tokens, aligned);
  } else {
    launch_rows_for<512, 1>(stream, args, num_sequences, most_tokens, aligned);
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

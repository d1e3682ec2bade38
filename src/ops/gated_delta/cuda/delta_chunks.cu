// The chunk form. With S [keys, values] the state before the chunk, γ_i = g_1 + … + g_i and
// Γ_ij = e^(γ_i − γ_j):
//   A_ij = β_i·(k_i·k_j)·Γ_ij (j < i),  M_ij = (q_i·k_j)·Γ_ij (j ≤ i)
//   (I + A)·D = β·(V − e^γ·K·S)
//   out = e^γ·Q·S + M·D,  S ← e^γ_n·S + Kᵀ·(e^(γ_n − γ)·D)
// The system is solved forwards by blocks of 16 tokens, whose own inverses are exact. A warp has
// all keys of 16 values of S, and with them all of D and out: only A and M are made together.

#include "ops/cuda/tensor_core.cuh"
#include "ops/fused/cuda/packed_rows.cuh"
#include "ops/gated_delta/cuda/delta_chunks.h"
#include "ops/linear/cuda/turned_rows.cuh"
#include "ops/norm/cuda/rms_norm.cuh"

namespace braid::cuda {
namespace {

constexpr int kChunk = 64, kBlock = 16, kBlocks = kChunk / kBlock;
constexpr int kKeyDim = 128, kValues = 128;  // of a block of threads
constexpr int kKeyTiles = kKeyDim / 16;
constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kWarpValues = kValues / kWarps, kValueTiles = kWarpValues / 8;
static_assert(kWarpValues == 16);
constexpr int kGateWarp = kWarps - 1;

// Of the tokens of a chunk.
struct Gates {
  float2 log2_decays[kChunk];  // γ / log 2, as the sum of two numbers
  float betas[kChunk], decays[kChunk], decays_to_end[kChunk];
};

struct Shared {
  float keys_raw[kChunk][kKeyDim], queries_raw[kChunk][kKeyDim];  // of the next chunk
  float values[2][kChunk][kValues + 8];
  uint16_t keys[kChunk][kKeyDim], queries[kChunk][kKeyDim];  // normed; chunks of 16 bytes permuted
  uint16_t couplings[kChunk][kChunk], weights[kChunk][kChunk];  // A and M, permuted
  float diagonal[kBlocks][kBlock][kBlock + 4];                  // of A
  uint16_t inverses[kBlocks][kBlock][kBlock + 8];               // of I + A, without the diagonal
  float gates_raw[kChunk][2];                                   // a and b of the next chunk
  Gates gates[2];
};

// Of 16 bytes `piece` of row `row` in rows of bfloat16.
template <int kColumns>
__device__ __forceinline__ uint32_t piece_address(const uint16_t (*rows)[kColumns], int row,
                                                  int piece) {
  return shared_address(rows) + row * kColumns * 2 + ((piece ^ (row & 7)) * 16);
}

// A product's sums [16, 8] as the right operand of another.
__device__ __forceinline__ void as_operand(const float (&c)[4], uint32_t (&b)[2]) {
  b[0] = transposed(pack_bfloat16(c[0], c[1]));
  b[1] = transposed(pack_bfloat16(c[2], c[3]));
}

__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
  braid::cuda::multiply_add(c, a, b[0], b[1]);
}

__device__ __forceinline__ float power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Rows [16·tile, +16) and columns [16·step, +16) as a left operand.
template <int kColumns>
__device__ __forceinline__ void load_left(const uint16_t (*rows)[kColumns], int tile, int step,
                                          uint32_t (&a)[4]) {
  const int lane = threadIdx.x % kWarp;
  load_matrices(a, piece_address(rows, tile * 16 + lane % 16, 2 * step + lane / 16));
}

struct Chunks {
  const DeltaArguments& args;
  Shared& shared;
  const DeviceRecurrentRows& rows;
  int head, key_head, first_value;

  // Begins to copy the chunk that starts with row `first`; behind the last row are zeros.
  __device__ void fetch(int first) const {
    const int count = min(kChunk, rows.num_rows - first);
    if (count <= 0) return;
    const int64_t row = rows.first_row + first;
    const int buffer = first / kChunk % 2;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    static_assert(kKeyDim == 4 * kWarp && kValues == 4 * kWarp);
#pragma unroll 2
    for (int t = warp; t < kChunk; t += kWarps) {
      const int64_t source = row + min(t, count - 1);
      copy16_async(shared_address(&shared.keys_raw[t][4 * lane]),
                   args.k[source] + key_head * kKeyDim + 4 * lane, t < count);
      copy16_async(shared_address(&shared.queries_raw[t][4 * lane]),
                   args.q[source] + key_head * kKeyDim + 4 * lane, t < count);
      copy16_async(shared_address(&shared.values[buffer][t][4 * lane]),
                   args.v[source] + head * args.value_dim + first_value + 4 * lane, t < count);
    }
    if (warp == kGateWarp) {
#pragma unroll
      for (int t = lane; t < kChunk; t += kWarp) {
        const int64_t source = row + min(t, count - 1);
        copy4_async(shared_address(&shared.gates_raw[t][0]), args.a[source] + head, true);
        copy4_async(shared_address(&shared.gates_raw[t][1]), args.b[source] + head, true);
      }
    }
    commit_copies();
  }

  // Norms keys and queries, each warp those of kOwn tokens. Their 2 · kOwn sums over the lanes are
  // made together: each round of exchanges halves the sums that a lane has part of.
  __device__ void prepare(float root) const {
    constexpr int kOwn = kChunk / kWarps;
    static_assert(kOwn == 8);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    float sums[2 * kOwn];
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const int t = warp + r * kWarps;
      sums[2 * r] = sum_of_squares(*reinterpret_cast<const float4*>(&shared.keys_raw[t][4 * lane]));
      sums[2 * r + 1] =
          sum_of_squares(*reinterpret_cast<const float4*>(&shared.queries_raw[t][4 * lane]));
    }
#pragma unroll
    for (int level = 3; level >= 0; --level) {
      const int left = 1 << level;
      const bool upper = (lane & (2 * left)) != 0;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        if (i >= left) break;
        const float other =
            __shfl_xor_sync(0xffffffffu, upper ? sums[i] : sums[i + left], 2 * left);
        sums[i] = (upper ? sums[i + left] : sums[i]) + other;
      }
    }
    // Of sum lane / 2.
    const float sum = sums[0] + __shfl_xor_sync(0xffffffffu, sums[0], 1);
    const float scale = l2_scale(sum, args.epsilon, lane / 2 % 2 == 0 ? 1 : root);
#pragma unroll 4
    for (int r = 0; r < kOwn; ++r) {
      const int t = warp + r * kWarps;
      const float4 k = *reinterpret_cast<const float4*>(&shared.keys_raw[t][4 * lane]);
      const float4 q = *reinterpret_cast<const float4*>(&shared.queries_raw[t][4 * lane]);
      const float key = __shfl_sync(0xffffffffu, scale, 4 * r);
      const float query = __shfl_sync(0xffffffffu, scale, 4 * r + 2);
      const int at = ((lane / 2) ^ (t & 7)) * 8 + lane % 2 * 4;
      store_rounded(shared.keys[t], at, {k.x * key, k.y * key, k.z * key, k.w * key});
      store_rounded(shared.queries[t], at, {q.x * query, q.y * query, q.z * query, q.w * query});
    }
  }

  // The gates of the chunk that was fetched last, by the warp kGateWarp.
  __device__ void make_gates(int first) const {
    if (first >= rows.num_rows) return;
    const int lane = threadIdx.x % kWarp;
    Gates& gates = shared.gates[first / kChunk % 2];
    wait_for_copies<0>();
    __syncwarp();
    double sum[2];
    float beta[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 2 * lane + i;
      const bool there = first + t < rows.num_rows;
      const float x = shared.gates_raw[t][0] + args.dt_bias[head];
      sum[i] = there ? double{args.rate[head]} * (x > 20 ? x : log1pf(expf(x))) : 0;
      beta[i] = there ? delta_beta(shared.gates_raw[t][1]) : 0;
    }
    sum[1] += sum[0];
    double before = sum[1];  // of the lanes up to this one
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const double other = __shfl_up_sync(0xffffffffu, before, distance);
      if (lane >= distance) before += other;
    }
    const double total = __shfl_sync(0xffffffffu, before, kWarp - 1);
    before -= sum[1];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 2 * lane + i;
      const double decay = before + sum[i];
      const double log2_decay = decay * 1.4426950408889634;
      const float high = static_cast<float>(log2_decay);
      gates.log2_decays[t] = {high, static_cast<float>(log2_decay - high)};
      gates.betas[t] = beta[i];
      gates.decays[t] = expf(static_cast<float>(decay));
      gates.decays_to_end[t] = expf(static_cast<float>(total - decay));
    }
  }

  // A by the first four warps, M by the others: 16 rows each, up to the diagonal.
  __device__ void couple(const Gates& gates) const {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int tile = warp % kBlocks;
    const bool weights = warp >= kBlocks;
    float sums[kChunk / 8][4] = {};
#pragma unroll 2
    for (int step = 0; step < kKeyTiles; ++step) {
      uint32_t a[4];
      load_left(weights ? shared.queries : shared.keys, tile, step, a);
#pragma unroll
      for (int pair = 0; pair < kBlocks; ++pair) {
        if (pair > tile) break;
        uint32_t b[4];  // of 16 tokens
        load_matrices(b, piece_address(shared.keys, pair * 16 + lane / 16 * 8 + lane % 8,
                                       2 * step + lane / 8 % 2));
        braid::cuda::multiply_add(sums[2 * pair], a, b[0], b[1]);
        braid::cuda::multiply_add(sums[2 * pair + 1], a, b[2], b[3]);
      }
    }
    uint16_t(*const to)[kChunk] = weights ? shared.weights : shared.couplings;
    const int row = tile * 16 + lane / 4, pair = lane % 4 * 2;
    const float2 own[2] = {gates.log2_decays[row], gates.log2_decays[row + 8]};
    const float factors[2] = {weights ? 1 : gates.betas[row], weights ? 1 : gates.betas[row + 8]};
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      if (n / 2 > tile) break;
      const int j = n * 8 + pair;
      const float4 others = *reinterpret_cast<const float4*>(&gates.log2_decays[j]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = row + half * 8;
        const auto value = [&](int e, float high, float low) {
          const float decay = power_of_two((own[half].x - high) + (own[half].y - low));
          const bool counts = weights ? j + e <= i : j + e < i;
          return counts ? factors[half] * (sums[n][2 * half + e] * decay) : 0;
        };
        const float first = value(0, others.x, others.y), second = value(1, others.z, others.w);
        if (!weights && n / 2 == tile) {
          float* const diagonal = &shared.diagonal[tile][i % kBlock][j % kBlock];
          diagonal[0] = first;
          diagonal[1] = second;
        }
        *reinterpret_cast<uint32_t*>(&to[i][(n ^ (i & 7)) * 8 + pair]) =
            pack_bfloat16(first, second);
      }
    }
  }

  // (I + A)⁻¹ of a diagonal block, by a warp, a lane a column:
  // T_ij = −A_ij − Σ A_im·T_mj over j < m < i.
  __device__ void invert(int block) const {
    const int column = threadIdx.x % kWarp;
    if (column >= kBlock) return;
    float t[kBlock];
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      // Above the diagonal of the inverse everything stays zero.
      float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
      for (int m = 0; m < i; m += 4) {
        const float4 a = *reinterpret_cast<const float4*>(&shared.diagonal[block][i][m]);
        sum = fmaf(-a.x, t[m], sum);
        if (m + 1 < i) sum = fmaf(-a.y, t[m + 1], sum);
        if (m + 2 < i) sum = fmaf(-a.z, t[m + 2], sum);
        if (m + 3 < i) sum = fmaf(-a.w, t[m + 3], sum);
      }
      t[i] = sum;
    }
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      const __nv_bfloat16 rounded = __float2bfloat16_rn(i == column ? 0 : t[i]);
      shared.inverses[block][i][column] = *reinterpret_cast<const uint16_t*>(&rounded);
    }
  }
};

// Grid: slices of 128 values, value heads, sequences.
__global__ void __launch_bounds__(kThreads, 1) delta_chunks_kernel(DeltaArguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  wait_for_inputs();
  const DeviceRecurrentRows rows = args.sequences[blockIdx.z];
  if (!takes_chunks(rows)) return;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int row_in_tile = lane / 4, pair = lane % 4 * 2;
  const int head = blockIdx.y;
  const Chunks chunks{
      args, shared, rows, head, args.key_head(head), static_cast<int>(blockIdx.x) * kValues};
  const float root = 1 / sqrtf(static_cast<float>(kKeyDim));
  chunks.fetch(0);
  if (warp == kGateWarp) chunks.make_gates(0);

  // [key tile][value tile]: keys 16·tile + lane / 4 and 8 more, values 8·tile + 2·(lane % 4) and
  // the next.
  const int own_value = chunks.first_value + warp * kWarpValues;
  float* const states = args.state(rows.slot, head) + static_cast<int64_t>(own_value) * kKeyDim;
  const auto state_at = [&](int k, int n, int i) {
    return (n * 8 + pair + i % 2) * kKeyDim + k * 16 + i / 2 * 8 + row_in_tile;
  };
  float state[kKeyTiles][kValueTiles][4];
#pragma unroll
  for (int k = 0; k < kKeyTiles; ++k) {
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state[k][n][i] = rows.fresh ? 0 : states[state_at(k, n, i)];
    }
  }

  for (int first = 0; first < rows.num_rows; first += kChunk) {
    const int buffer = first / kChunk % 2;
    const Gates& gates = shared.gates[buffer];
    wait_for_copies<0>();
    __syncthreads();  // this chunk is there, the one before is done
    chunks.prepare(root);
    __syncthreads();
    chunks.fetch(first + kChunk);
    chunks.couple(gates);

    // β·(V − e^γ·K·S), which becomes D.
    uint32_t state_operand[kKeyTiles][kValueTiles][2];
#pragma unroll
    for (int k = 0; k < kKeyTiles; ++k) {
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) as_operand(state[k][n], state_operand[k][n]);
    }
    float d[kBlocks][kValueTiles][4] = {};
#pragma unroll
    for (int t = 0; t < kBlocks; ++t) {
#pragma unroll
      for (int k = 0; k < kKeyTiles; ++k) {
        uint32_t a[4];
        load_left(shared.keys, t, k, a);
#pragma unroll
        for (int n = 0; n < kValueTiles; ++n) multiply_add(d[t][n], a, state_operand[k][n]);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = t * 16 + half * 8 + row_in_tile;
        const float beta = gates.betas[i], decay = gates.decays[i];
#pragma unroll
        for (int n = 0; n < kValueTiles; ++n) {
          const float2 v = *reinterpret_cast<const float2*>(
              &shared.values[buffer][i][warp * kWarpValues + n * 8 + pair]);
          float* const own = d[t][n] + 2 * half;
          own[0] = beta * (v.x - decay * own[0]);
          own[1] = beta * (v.y - decay * own[1]);
        }
      }
    }
    __syncthreads();  // A and M are there
    if (warp < kBlocks) {
      chunks.invert(warp);
    } else if (warp == kGateWarp) {
      chunks.make_gates(first + kChunk);
    }
    __syncthreads();

    uint32_t updates[kBlocks][kValueTiles][2];  // D, as an operand
#pragma unroll
    for (int t = 0; t < kBlocks; ++t) {
#pragma unroll
      for (int j = 0; j < t; ++j) {
        uint32_t a[4];
        load_left(shared.couplings, t, j, a);
#pragma unroll
        for (int e = 0; e < 4; ++e) a[e] ^= 0x80008000u;  // −A
#pragma unroll
        for (int n = 0; n < kValueTiles; ++n) multiply_add(d[t][n], a, updates[j][n]);
      }
      uint32_t inverse[4];
      load_matrices(inverse, shared_address(&shared.inverses[t][lane % 16][lane / 16 * 8]));
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) {
        uint32_t right[2];
        as_operand(d[t][n], right);
        multiply_add(d[t][n], inverse, right);
        as_operand(d[t][n], updates[t][n]);
      }
    }

    float* to =
        args.out[rows.first_row + first + row_in_tile] + head * args.value_dim + own_value + pair;
#pragma unroll
    for (int t = 0; t < kBlocks; ++t) {
      float out[kValueTiles][4] = {};
#pragma unroll
      for (int k = 0; k < kKeyTiles; ++k) {
        uint32_t a[4];
        load_left(shared.queries, t, k, a);
#pragma unroll
        for (int n = 0; n < kValueTiles; ++n) multiply_add(out[n], a, state_operand[k][n]);
      }
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[n][i] *= gates.decays[t * 16 + i / 2 * 8 + row_in_tile];
      }
#pragma unroll
      for (int j = 0; j <= t; ++j) {
        uint32_t a[4];
        load_left(shared.weights, t, j, a);
#pragma unroll
        for (int n = 0; n < kValueTiles; ++n) multiply_add(out[n], a, updates[j][n]);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (first + t * 16 + half * 8 + row_in_tile < rows.num_rows) {
#pragma unroll
          for (int n = 0; n < kValueTiles; ++n) {
            *reinterpret_cast<float2*>(to + n * 8) = {out[n][2 * half], out[n][2 * half + 1]};
          }
        }
        to += 8 * args.out.stride;
      }
    }

    // S ← e^γ_n·S + Kᵀ·(e^(γ_n − γ)·D)
#pragma unroll
    for (int t = 0; t < kBlocks; ++t) {
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          d[t][n][i] *= gates.decays_to_end[t * 16 + i / 2 * 8 + row_in_tile];
        }
        as_operand(d[t][n], updates[t][n]);
      }
    }
    const float decay = gates.decays[kChunk - 1];
#pragma unroll
    for (int k = 0; k < kKeyTiles; ++k) {
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) state[k][n][i] *= decay;
      }
#pragma unroll
      for (int t = 0; t < kBlocks; ++t) {
        uint32_t a[4];  // keys as rows
        load_matrices_transposed(
            a, piece_address(shared.keys, t * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
        for (int n = 0; n < kValueTiles; ++n) multiply_add(state[k][n], a, updates[t][n]);
      }
    }
  }

#pragma unroll
  for (int k = 0; k < kKeyTiles; ++k) {
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) states[state_at(k, n, i)] = state[k][n][i];
    }
  }
}

}  // namespace

bool delta_chunks_can(const DeltaArguments& args, bool aligned) {
  return aligned && args.key_dim == kKeyDim && args.value_dim % kValues == 0 &&
         args.out.stride % 2 == 0 && reinterpret_cast<uintptr_t>(args.out.data) % 8 == 0;
}

void delta_chunks(Stream& stream, const DeltaArguments& args, int num_sequences) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(delta_chunks_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(sizeof(Shared)));
  BRAID_CUDA_CHECK(allowed);
  const dim3 grid(static_cast<unsigned>(args.value_dim / kValues),
                  static_cast<unsigned>(args.value_heads), static_cast<unsigned>(num_sequences));
  launch(stream, delta_chunks_kernel, grid, dim3(kThreads), sizeof(Shared), args);
}

}  // namespace braid::cuda

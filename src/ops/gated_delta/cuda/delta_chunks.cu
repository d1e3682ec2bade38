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
#include "ops/norm/cuda/rms_norm.cuh"

namespace braid::cuda {
namespace {

constexpr int kChunk = 64, kBlock = 16, kBlocks = kChunk / kBlock;
constexpr int kKeyDim = 128, kValues = 128;  // of a block of threads
constexpr int kKeyTiles = kKeyDim / 16;
constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kWarpValues = kValues / kWarps, kValueTiles = kWarpValues / 8;
static_assert(kWarpValues == 16);

struct Shared {
  float keys_raw[kChunk][kKeyDim], queries_raw[kChunk][kKeyDim];  // of the next chunk
  float values[2][kChunk][kValues + 8];
  uint16_t keys[kChunk][kKeyDim], queries[kChunk][kKeyDim];  // normed; chunks of 16 bytes permuted
  uint16_t couplings[kChunk][kChunk], weights[kChunk][kChunk];  // A and M, permuted
  float diagonal[kBlocks][kBlock][kBlock + 1];                  // of A
  uint16_t inverses[kBlocks][kBlock][kBlock + 8];               // of I + A, without the diagonal
  double log_decays[kChunk];                                    // γ
  float betas[kChunk], decays[kChunk], decays_to_end[kChunk];
};

// Of 16 bytes `piece` of row `row` in rows of bfloat16.
template <int kColumns>
__device__ __forceinline__ uint32_t piece_address(const uint16_t (*rows)[kColumns], int row,
                                                  int piece) {
  return shared_address(rows) + row * kColumns * 2 + ((piece ^ (row & 7)) * 16);
}

__device__ __forceinline__ uint32_t packed(float x, float y) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// An 8 × 8 matrix of 16-bit elements, of which lane l holds two of row l / 4, turned over.
__device__ __forceinline__ uint32_t transposed(uint32_t pair) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

// A product's sums [16, 8] as the right operand of another.
__device__ __forceinline__ void as_operand(const float (&c)[4], uint32_t (&b)[2]) {
  b[0] = transposed(packed(c[0], c[1]));
  b[1] = transposed(packed(c[2], c[3]));
}

__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
  braid::cuda::multiply_add(c, a, b[0], b[1]);
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
    for (int i = threadIdx.x; i < kChunk * kKeyDim / 4; i += kThreads) {
      const int t = i / (kKeyDim / 4), at = i % (kKeyDim / 4) * 4;
      const int64_t source = row + min(t, count - 1);
      copy16_async(shared_address(&shared.keys_raw[t][at]),
                   args.k[source] + key_head * kKeyDim + at, t < count);
      copy16_async(shared_address(&shared.queries_raw[t][at]),
                   args.q[source] + key_head * kKeyDim + at, t < count);
      copy16_async(shared_address(&shared.values[buffer][t][at]),
                   args.v[source] + head * args.value_dim + first_value + at, t < count);
    }
    commit_copies();
  }

  // Norms keys and queries, each warp some tokens; the last warp makes the gates.
  __device__ void prepare(int first, float root) const {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll 2
    for (int t = warp; t < kChunk; t += kWarps) {
      const float4 k = *reinterpret_cast<const float4*>(&shared.keys_raw[t][4 * lane]);
      const float4 q = *reinterpret_cast<const float4*>(&shared.queries_raw[t][4 * lane]);
      const float key = l2_scale(warp_sum(sum_of_squares(k)), args.epsilon, 1);
      const float query = l2_scale(warp_sum(sum_of_squares(q)), args.epsilon, root);
      const int at = ((lane / 2) ^ (t & 7)) * 8 + lane % 2 * 4;
      store_rounded(shared.keys[t], at, {k.x * key, k.y * key, k.z * key, k.w * key});
      store_rounded(shared.queries[t], at, {q.x * query, q.y * query, q.z * query, q.w * query});
    }
    if (warp != kWarps - 1) return;
    double sum[2];
    float beta[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 2 * lane + i;
      const bool there = first + t < rows.num_rows;
      const int64_t row = rows.first_row + (there ? first + t : 0);
      const float x = args.a[row][head] + args.dt_bias[head];
      sum[i] = there ? double{args.rate[head]} * (x > 20 ? x : log1pf(expf(x))) : 0;
      beta[i] = there ? delta_beta(args.b[row][head]) : 0;
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
      shared.log_decays[t] = decay;
      shared.betas[t] = beta[i];
      shared.decays[t] = expf(static_cast<float>(decay));
      shared.decays_to_end[t] = expf(static_cast<float>(total - decay));
    }
  }

  // A by the first four warps, M by the others: 16 rows each, up to the diagonal.
  __device__ void couple() const {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int tile = warp % kBlocks;
    const bool weights = warp >= kBlocks;
    float sums[kChunk / 8][4] = {};
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
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      if (n / 2 > tile) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = tile * 16 + half * 8 + lane / 4, j = n * 8 + lane % 4 * 2;
        const double own = shared.log_decays[i];
        const float factor = weights ? 1 : shared.betas[i];
        float v[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const bool counts = weights ? j + e <= i : j + e < i;
          v[e] = counts ? factor * (sums[n][2 * half + e] *
                                    expf(static_cast<float>(own - shared.log_decays[j + e])))
                        : 0;
          if (!weights && n / 2 == tile) {
            shared.diagonal[tile][i % kBlock][(j + e) % kBlock] = v[e];
          }
        }
        *reinterpret_cast<uint32_t*>(&to[i][(n ^ (i & 7)) * 8 + lane % 4 * 2]) = packed(v[0], v[1]);
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
      for (int m = 0; m < i; ++m) sum = fmaf(-shared.diagonal[block][i][m], t[m], sum);
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
    wait_for_copies<0>();
    __syncthreads();  // this chunk is there, the one before is done
    chunks.prepare(first, root);
    __syncthreads();
    chunks.fetch(first + kChunk);
    chunks.couple();

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
        const float beta = shared.betas[i], decay = shared.decays[i];
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
    if (warp < kBlocks) chunks.invert(warp);
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
        for (int i = 0; i < 4; ++i) out[n][i] *= shared.decays[t * 16 + i / 2 * 8 + row_in_tile];
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
        const int i = first + t * 16 + half * 8 + row_in_tile;
        if (i >= rows.num_rows) continue;
        float* const to = args.out[rows.first_row + i] + head * args.value_dim + own_value + pair;
#pragma unroll
        for (int n = 0; n < kValueTiles; ++n) {
          to[n * 8] = out[n][2 * half];
          to[n * 8 + 1] = out[n][2 * half + 1];
        }
      }
    }

    // S ← e^γ_n·S + Kᵀ·(e^(γ_n − γ)·D)
#pragma unroll
    for (int t = 0; t < kBlocks; ++t) {
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          d[t][n][i] *= shared.decays_to_end[t * 16 + i / 2 * 8 + row_in_tile];
        }
        as_operand(d[t][n], updates[t][n]);
      }
    }
    const float decay = shared.decays[kChunk - 1];
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
  return aligned && args.key_dim == kKeyDim && args.value_dim % kValues == 0;
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

#pragma once

// The tile of queries that a block computes. Its warps are a grid of kRowWarps × kColumnWarps: a
// warp has 16 queries; of their scores it computes its share of a tile's keys, of their weighted
// values its share of the head's elements. The weights pass through shared memory.

#include "ops/attention/cuda/attention_call.h"
#include "ops/attention/cuda/paged_store.cuh"
#include "ops/cuda/int8.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/tensor_core.cuh"
#include "ops/fused/cuda/head.cuh"

namespace braid::cuda {

// What a tile keeps of a store of int8: codes until their thread expands them, and the scales of
// this tile and the next. Bfloat16 is copied to where it is used.
template <typename Stored, int kKeys, int kDim>
struct StoredCodes {};
template <int kKeys, int kDim>
struct StoredCodes<int8_t, kKeys, kDim> {
  alignas(16) int8_t keys[kKeys * kDim];
  alignas(16) int8_t values[kKeys * kDim];
  float key_scales[2][kKeys], value_scales[2][kKeys];
};

// Stored: bfloat16, or int8 whose codes are multiplied as bfloat16, which is exact; scores and
// weights take the scales. kBuffers: 2 if a tile's keys and values come while the one before it is
// computed.
template <int kDim_, int kRowWarps_, int kColumnWarps_, int kKeys_,
          typename Stored_ = __nv_bfloat16, int kBuffers_ = 1>
struct TileShape {
  static constexpr int kBuffers = kBuffers_;
  using Stored = Stored_;
  static constexpr bool kScaled = sizeof(Stored) == 1;
  static constexpr int kDim = kDim_;
  static constexpr int kRowWarps = kRowWarps_;
  static constexpr int kColumnWarps = kColumnWarps_;
  static constexpr int kKeys = kKeys_;  // of a tile, aligned to absolute positions
  static constexpr int kQueries = 16 * kRowWarps;
  static constexpr int kThreads = kWarp * kRowWarps * kColumnWarps;
  static constexpr int kWarpKeys = kKeys / kColumnWarps;
  static constexpr int kWarpDims = kDim / kColumnWarps;
  static constexpr int kScoreTiles = kWarpKeys / 8;
  static constexpr int kValueTiles = kWarpDims / 8;
  static_assert(kScoreTiles == 1 || kScoreTiles % 2 == 0);
  static_assert(kValueTiles % 2 == 0 && (kKeys == 32 || kKeys == 64));

  struct Shared {
    __nv_bfloat16 queries[kQueries * kDim];
    __nv_bfloat16 keys[kBuffers * kKeys * kDim];
    __nv_bfloat16 values[kBuffers * kKeys * kDim];
    __nv_bfloat16 weights[kQueries * kKeys];
    float exchange[kColumnWarps][kQueries];
    uint32_t offsets[2][kKeys];  // of a tile's keys in the store, in units of 8 elements
    StoredCodes<Stored, kKeys, kDim> codes;
    bool last;
  };
};

inline constexpr uint32_t kNoKey = 0xffffffffu;

// What the queries of a tile see, by absolute position.
struct VisibleKeys {
  int begin, end;          // of all queries together
  int all_begin, all_end;  // those that every query sees
};

template <typename Shape>
class AttentionTile {
 public:
  using Shared = typename Shape::Shared;
  using Stored = typename Shape::Stored;
  static constexpr bool kScaled = Shape::kScaled;
  static constexpr int kDim = Shape::kDim, kKeys = Shape::kKeys, kThreads = Shape::kThreads;
  static constexpr int kColumnWarps = Shape::kColumnWarps;

  // The running softmax of queries row() and row() + 8; exponents are of 2.
  float largest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};  // of this lane's keys, until finish()
  float weighted[Shape::kValueTiles][4] = {};

  __device__ explicit AttentionTile(Shared& shared) : shared_(shared) {}

  // As if no key had been seen yet.
  __device__ void start_again() {
#pragma unroll
    for (int i = 0; i < 2; ++i) largest[i] = -INFINITY, sum[i] = 0;
#pragma unroll
    for (auto& tile : weighted) {
#pragma unroll
      for (float& x : tile) x = 0;
    }
  }

  __device__ static int lane() { return threadIdx.x % kWarp; }
  __device__ static int row_warp() { return threadIdx.x / kWarp / kColumnWarps; }
  __device__ static int column_warp() { return threadIdx.x / kWarp % kColumnWarps; }
  __device__ static int row() { return 16 * row_warp() + lane() / 4; }
  // The first of the two elements that weighted[tile] has for each of the two rows.
  __device__ static int element(int tile) {
    return column_warp() * Shape::kWarpDims + tile * 8 + lane() % 4 * 2;
  }

  // Rows of kDim or kKeys elements lie in chunks of 8, which are permuted so that eight rows'
  // chunks of the same number lie in different banks.
  __device__ static int wide_place(int row, int chunk) {
    return row * kDim + (chunk ^ (row % 8)) * 8;
  }

  // query_at(i): where query i is; aligned: all of them to 16 bytes.
  template <typename QueryAt>
  __device__ void load_queries(int num_queries, bool aligned, const QueryAt& query_at) {
    constexpr int kVectors = kDim / 4;
    constexpr int kThreadVectors = Shape::kQueries * kVectors / kThreads;
    constexpr int kAtOnce = kThreadVectors < 8 ? kThreadVectors : 8;
    static_assert(Shape::kQueries * kVectors % (kAtOnce * kThreads) == 0);
    for (int first = 0; first < Shape::kQueries * kVectors; first += kAtOnce * kThreads) {
      float4 v[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = first + j * kThreads + threadIdx.x, query = i / kVectors;
        v[j] = {};
        if (query >= num_queries) continue;
        const float* from = query_at(query) + i % kVectors * 4;
        v[j] = aligned ? *reinterpret_cast<const float4*>(from)
                       : float4{from[0], from[1], from[2], from[3]};
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = first + j * kThreads + threadIdx.x;
        const int query = i / kVectors, vector = i % kVectors;
        const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(v[j].x, v[j].y),
                                         __floats2bfloat162_rn(v[j].z, v[j].w)};
        *reinterpret_cast<uint2*>(
            &shared_.queries[wide_place(query, vector / 2) + vector % 2 * 4]) =
            *reinterpret_cast<const uint2*>(pairs);
      }
    }
  }

  // The same of queries that have yet to be normed and turned, by a warp each. token_of(i): the row
  // of query i in the tables of cosines and sines.
  template <typename QueryAt, typename TokenOf>
  __device__ void prepare_queries(const QueryHeads& heads, int num_queries, const QueryAt& query_at,
                                  const TokenOf& token_of) {
    using H = Head<kDim>;
    constexpr int kWarps = kThreads / kWarp, kEach = Shape::kQueries / kWarps;
    constexpr int kAtOnce = kDim > 256 ? 2 : 4;
    static_assert(kEach % kAtOnce == 0);
    const int warp = threadIdx.x / kWarp;
    typename H::Row gains;
    gains.load(heads.norm, kDim, lane());
#pragma unroll 1
    for (int first = warp; first < Shape::kQueries; first += kAtOnce * kWarps) {
      H head[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int query = first + i * kWarps;
        head[i].load(query_at(min(query, num_queries - 1)), lane());
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int query = first + i * kWarps, token = token_of(min(query, num_queries - 1));
        head[i].norm(gains, heads.epsilon);
        typename H::Row cosines, sines;
        cosines.load(heads.cos + token * heads.stride, heads.pairs, lane());
        sines.load(heads.sin + token * heads.stride, heads.pairs, lane());
        head[i].turn_in_lane(cosines, sines, heads.pairs, lane());
#pragma unroll
        for (int j = 0; j < H::kKept; ++j) {
          const int element = H::element(j, lane());
          if (element >= kDim) continue;
          put(&shared_.queries[wide_place(query, element / 8) + element % 8],
              query < num_queries ? head[i].v[j] : float4{});
        }
      }
    }
  }

  // Where this thread's key of the tile that begins at `start` is; for put_key(). Keys outside of
  // `visible` count as zeros: what is in their places may be anything.
  template <typename T>
  __device__ static uint32_t find_key(const PagedRows<T>& store, const int32_t* pages,
                                      int num_pages, int kv_head, int start,
                                      const VisibleKeys& visible) {
    const int position = start + threadIdx.x;
    if (threadIdx.x >= kKeys || position < visible.begin || position >= visible.end) return kNoKey;
    return static_cast<uint32_t>(
        (store.offset(pages, num_pages, position) + store.head_offset(kv_head)) / 8);
  }
  __device__ void put_key(int start, uint32_t offset) {
    if (threadIdx.x < kKeys) shared_.offsets[start / kKeys % 2][threadIdx.x] = offset;
  }
  // Each begins a copy of the keys (and all scales) or values of the tile's positions in
  // [first, last), which is to be committed.
  template <typename T>
  __device__ void fetch_keys(const PagedRows<T>& keys, const PagedRows<T>& values, int start,
                             int first = 0, int last = INT32_MAX) {
    if constexpr (kScaled) {
      fetch(shared_.codes.keys, keys.data, start, first, last);
      fetch_scales(keys.scales, values.scales, start, first, last);
    } else {
      fetch(shared_.keys, keys.data, start, first, last);
    }
  }
  template <typename T>
  __device__ void fetch_values(const PagedRows<T>& values, int start, int first = 0,
                               int last = INT32_MAX) {
    if constexpr (kScaled) {
      fetch(shared_.codes.values, values.data, start, first, last);
    } else {
      fetch(shared_.values, values.data, start, first, last);
    }
  }
  // Of int8, when this thread's copies are there: makes bfloat16 of what it has copied.
  __device__ void expand_keys() {
    if constexpr (kScaled) expand(shared_.keys, shared_.codes.keys);
  }
  __device__ void expand_values() {
    if constexpr (kScaled) expand(shared_.values, shared_.codes.values);
  }

  // Of the tile that begins at `start`, for what follows.
  __device__ void use_tile(int start) { buffer_ = buffer_of(start); }

  // Scores of this warp's queries with its keys.
  __device__ void multiply_keys() {
#pragma unroll
    for (auto& tile : scores_) {
#pragma unroll
      for (float& score : tile) score = 0;
    }
    const int lane = threadIdx.x % kWarp;
    const int query = 16 * row_warp() + lane % 16;
    const int first_key = column_warp() * Shape::kWarpKeys;
    if constexpr (Shape::kScoreTiles == 1) {
      float odd[4] = {};  // a second chain of sums
#pragma unroll 4
      for (int d = 0; d < kDim / 8; d += 4) {
        uint32_t a[4], more_a[4], b[4];
        load_matrices(a, shared_address(&shared_.queries[wide_place(query, d + lane / 16)]));
        load_matrices(more_a,
                      shared_address(&shared_.queries[wide_place(query, d + 2 + lane / 16)]));
        load_matrices(b,
                      shared_address(
                          &shared_.keys[buffer_ + wide_place(first_key + lane % 8, d + lane / 8)]));
        multiply_add(scores_[0], a, b[0], b[1]);
        multiply_add(odd, more_a, b[2], b[3]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) scores_[0][i] += odd[i];
    } else {
#pragma unroll 4
      for (int d = 0; d < kDim / 8; d += 2) {
        uint32_t a[4];
        load_matrices(a, shared_address(&shared_.queries[wide_place(query, d + lane / 16)]));
#pragma unroll
        for (int tile = 0; tile < Shape::kScoreTiles; tile += 2) {
          uint32_t b[4];
          const int key = first_key + tile * 8 + lane % 8 + lane / 16 * 8;
          load_matrices(b,
                        shared_address(&shared_.keys[buffer_ + wide_place(key, d + lane / 8 % 2)]));
          multiply_add(scores_[tile], a, b[0], b[1]);
          multiply_add(scores_[tile + 1], a, b[2], b[3]);
        }
      }
    }
  }

  // Scales the scores, drops those that a query must not see (query row() + 8·i sees
  // [begin[i], end[i])), and leaves the largest of this warp's keys for the others.
  __device__ void scale_scores(float scale, int start, const VisibleKeys& visible,
                               const int (&begin)[2], const int (&end)[2]) {
    const bool all = start >= visible.all_begin && start + kKeys <= visible.all_end;
    parity_ = start / kKeys % 2;
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int tile = 0; tile < Shape::kScoreTiles; ++tile) {
      const int key = start + column_warp() * Shape::kWarpKeys + tile * 8 + lane() % 4 * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores_[tile][i];
        score = __fmul_rn(score, scale);
        if constexpr (kScaled) {
          score = __fmul_rn(score, shared_.codes.key_scales[parity_][key - start + i % 2]);
        }
        const int position = key + i % 2;
        if (!all && (position < begin[i / 2] || position >= end[i / 2])) score = -INFINITY;
        top[i / 2] = fmaxf(top[i / 2], score);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 1));
      top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 2));
      top_[i] = top[i];
      if (kColumnWarps > 1 && lane() % 4 == 0)
        shared_.exchange[column_warp()][row() + 8 * i] = top[i];
    }
  }

  // After a barrier: turns scores into weights, and rescales what was summed before. Nothing is
  // contracted, so that every kernel rounds alike.
  __device__ void weigh() {
    float used[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = fmaxf(largest[i], top_[i]);
      if constexpr (kColumnWarps > 1) {
#pragma unroll
        for (int w = 0; w < kColumnWarps; ++w) top = fmaxf(top, shared_.exchange[w][row() + 8 * i]);
      }
      used[i] = top == -INFINITY ? 0 : top;
      const float factor = exp2f(__fsub_rn(largest[i], used[i]));
      largest[i] = top;
      sum[i] = __fmul_rn(sum[i], factor);
#pragma unroll
      for (int tile = 0; tile < Shape::kValueTiles; ++tile) {
        weighted[tile][2 * i] *= factor;
        weighted[tile][2 * i + 1] *= factor;
      }
    }
#pragma unroll
    for (int tile = 0; tile < Shape::kScoreTiles; ++tile) {
      const int key = column_warp() * Shape::kWarpKeys + tile * 8 + lane() % 4 * 2;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float one = exp2f(__fsub_rn(scores_[tile][2 * i], used[i]));
        const float other = exp2f(__fsub_rn(scores_[tile][2 * i + 1], used[i]));
        __nv_bfloat162 weights;
        if constexpr (kScaled) {
          const float* scales = &shared_.codes.value_scales[parity_][key];
          sum[i] = __fadd_rn(sum[i], __fadd_rn(one, other));
          weights = __floats2bfloat162_rn(one * scales[0], other * scales[1]);
        } else {
          // The sum of the rounded ones: then they are shares of 1.
          weights = __floats2bfloat162_rn(one, other);
          sum[i] = __fadd_rn(sum[i], __fadd_rn(__low2float(weights), __high2float(weights)));
        }
        *reinterpret_cast<__nv_bfloat162*>(
            &shared_.weights[narrow_place(row() + 8 * i, key / 8) + key % 8]) = weights;
      }
    }
  }

  // After a barrier.
  __device__ void multiply_values() {
    const int lane = threadIdx.x % kWarp;
    const int query = 16 * row_warp() + lane % 16;
    const int first_chunk = column_warp() * Shape::kWarpDims / 8;
#pragma unroll
    for (int key = 0; key < kKeys; key += 16) {
      uint32_t a[4];
      load_matrices(a, shared_address(&shared_.weights[narrow_place(query, key / 8 + lane / 16)]));
#pragma unroll
      for (int tile = 0; tile < Shape::kValueTiles; tile += 2) {
        uint32_t b[4];
        load_matrices_transposed(
            b,
            shared_address(&shared_.values[buffer_ + wide_place(key + lane % 16,
                                                                first_chunk + tile + lane / 16)]));
        multiply_add(weighted[tile], a, b[0], b[1]);
        multiply_add(weighted[tile + 1], a, b[2], b[3]);
      }
    }
  }

  // The copies of the first tile, keys and values of earlier steps before the kernels in front are
  // through: three groups, of which keys are complete with the first two. find(start): find_key().
  template <typename T, typename Find>
  __device__ void begin_copies(const PagedRows<T>& keys, const PagedRows<T>& values, int begin,
                               int first_position, const Find& find) {
    put_key(begin, find(begin));
    __syncthreads();
    fetch_keys(keys, values, begin, 0, first_position);
    fetch_values(values, begin, 0, first_position);
    commit_copies();
    wait_for_inputs();
    fetch_keys(keys, values, begin, first_position);
    commit_copies();
    fetch_values(values, begin, first_position);
    commit_copies();
  }
  // The tile at `start` where keys and values have one place each, which the next tile before `end`
  // takes as soon as they are done with.
  template <typename T, typename Find>
  __device__ void take_in_turn(const PagedRows<T>& keys, const PagedRows<T>& values, int start,
                               int end, float scale, const VisibleKeys& visible,
                               const int (&row_begin)[2], const int (&row_end)[2],
                               const Find& find) {
    const int next = start + kKeys;
    const bool more = next < end;
    wait_for_copies<1>();
    expand_keys();
    __syncthreads();                                       // keys are there
    const uint32_t next_key = more ? find(next) : kNoKey;  // arrives meanwhile
    multiply_keys();
    scale_scores(scale, start, visible, row_begin, row_end);
    put_key(next, next_key);
    __syncthreads();  // keys are done with
    if (more) fetch_keys(keys, values, next);
    commit_copies();
    weigh();
    wait_for_copies<1>();
    expand_values();
    __syncthreads();  // values and weights are there
    multiply_values();
    __syncthreads();  // values are done with
    if (more) fetch_values(values, next);
    commit_copies();
  }

  // After a barrier: completes the sums.
  __device__ void finish() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
      sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
      if (lane() % 4 == 0) shared_.exchange[column_warp()][row() + 8 * i] = sum[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] = 0;
#pragma unroll
      for (int w = 0; w < kColumnWarps; ++w) sum[i] += shared_.exchange[w][row() + 8 * i];
    }
  }

 private:
  __device__ static int narrow_place(int row, int chunk) {
    return row * kKeys + (chunk ^ (kKeys == 64 ? row % 8 : row / 2 % 4)) * 8;
  }

  // A thread copies 16 bytes of a row, of every kStep-th row.
  static constexpr int kChunks = kDim * sizeof(Stored) / 16, kStep = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && kKeys % kStep == 0);
  static constexpr uint32_t kElements = 16 / sizeof(Stored);

  // Not inlined: kernels that run for microseconds spend them on fetching their instructions.
  __device__ __noinline__ static void fetch(uint32_t to, const uint32_t* offsets,
                                            const Stored* store, int first, int last) {
    const int chunk = threadIdx.x % kChunks;
    store += chunk * kElements;
#pragma unroll 4
    for (int key = threadIdx.x / kChunks; key < kKeys; key += kStep) {
      if (key < first || key >= last) continue;
      const uint32_t offset = offsets[key];
      copy16_async(to + (kScaled ? key * kDim + 16 * chunk : 2 * wide_place(key, chunk)),
                   store + (offset != kNoKey ? static_cast<int64_t>(offset) * 8 : 0),
                   offset != kNoKey);
    }
  }
  __device__ void fetch(Stored* to, const Stored* store, int start, int first, int last) {
    fetch(shared_address(to + buffer_of(start)), shared_.offsets[start / kKeys % 2], store,
          first - start, last - start);
  }
  __device__ static int buffer_of(int start) {
    return Shape::kBuffers > 1 ? start / kKeys % Shape::kBuffers * (kKeys * kDim) : 0;
  }
  __device__ void fetch_scales(const float* key_scales, const float* value_scales, int start,
                               int first, int last) {
    const int key = threadIdx.x, parity = start / kKeys % 2;
    const int position = start + key;
    if (key >= kKeys || position < first || position >= last) return;
    const uint32_t offset = shared_.offsets[parity][key];
    const bool wanted = offset != kNoKey;
    const uint32_t row = wanted ? offset / (kDim / 8) : 0;
    copy4_async(shared_address(&shared_.codes.key_scales[parity][key]), key_scales + row, wanted);
    copy4_async(shared_address(&shared_.codes.value_scales[parity][key]), value_scales + row,
                wanted);
  }
  __device__ __noinline__ static void expand(__nv_bfloat16* to, const int8_t* codes) {
    const int chunk = threadIdx.x % kChunks;
#pragma unroll 2
    for (int key = threadIdx.x / kChunks; key < kKeys; key += kStep) {
      const uint4 from = *reinterpret_cast<const uint4*>(&codes[key * kDim + 16 * chunk]);
      const uint2 a = codes_to_bf16(from.x), b = codes_to_bf16(from.y);
      const uint2 c = codes_to_bf16(from.z), d = codes_to_bf16(from.w);
      *reinterpret_cast<uint4*>(&to[wide_place(key, 2 * chunk)]) = {a.x, a.y, b.x, b.y};
      *reinterpret_cast<uint4*>(&to[wide_place(key, 2 * chunk + 1)]) = {c.x, c.y, d.x, d.y};
    }
  }

  Shared& shared_;
  int buffer_ = 0;
  float scores_[Shape::kScoreTiles][4];
  float top_[2];
  int parity_ = 0;  // of the tile that scores_ are of
};

}  // namespace braid::cuda

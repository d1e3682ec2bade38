#pragma once

// The keys and values that a block goes through for the queries of one token and KV head, in the
// registers of its warps as the tensor cores take them: scores are keys · queries, results
// values · weights, so that the queries are the short side of the products.
//
// A lane's places in a product of 16 × 8 with depth 16: g = lane / 4, q = lane % 4. Elements of a
// head and keys may come in any order as long as both operands have the same. Keys come in groups
// of eight rows. For scores, row g of a product is a row of group g % 2 of two, so that eight lanes
// read rows of both; for results, lane q has the keys of group q. Copies of groups in shared memory
// (key_ring.cuh) lie so that what eight lanes read at once is in different banks.

#include "ops/attention/cuda/paged_store.cuh"
#include "ops/cuda/int8.cuh"
#include "ops/cuda/tensor_core.cuh"

namespace braid::cuda {

// So many words, which are read at once.
template <int kCount>
struct alignas(4 * kCount) Words {
  uint32_t w[kCount];
};
// Of memory that other multiprocessors write, or of shared memory.
template <int kCount, bool kShared = false>
__device__ __forceinline__ Words<kCount> load_words(const void* from) {
  Words<kCount> words{};
  if constexpr (kShared) {
    words = *static_cast<const Words<kCount>*>(from);
  } else if constexpr (kCount == 4) {
    const uint4 v = __ldcg(static_cast<const uint4*>(from));
    words.w[0] = v.x, words.w[1] = v.y, words.w[2] = v.z, words.w[3] = v.w;
  } else if constexpr (kCount == 2) {
    const uint2 v = __ldcg(static_cast<const uint2*>(from));
    words.w[0] = v.x, words.w[1] = v.y;
  } else {
    words.w[0] = __ldcg(static_cast<const unsigned*>(from));
  }
  return words;
}

// The pages of a sequence. If they are few, a warp holds them, one a lane, and finds one without
// waiting for memory.
struct WarpPages {
  const int32_t* pages;
  int count;
  bool held;
  int32_t own;

  // Where the row of a position is in KV head 0 (PagedRows::offset()); by a whole warp.
  template <typename T>
  __device__ int64_t offset(const PagedRows<T>& rows, int position) const {
    int index = position >> rows.page_shift;
    if (index >= count) index %= count;
    return rows.offset(held ? __shfl_sync(0xffffffffu, own, index) : pages[index], position);
  }
};

template <int kDim_, typename Stored_, int kQueryTiles_>
struct DecodeShape {
  using Stored = Stored_;
  static constexpr bool kScaled = sizeof(Stored) == 1;
  static constexpr int kDim = kDim_;
  static constexpr int kDimShift = kDim == 64 ? 6 : kDim == 128 ? 7 : kDim == 256 ? 8 : 9;
  static_assert(kDim == 1 << kDimShift);
  static constexpr int kQueryTiles = kQueryTiles_;  // of 8
  static constexpr int kQueries = 8 * kQueryTiles;
  static constexpr int kWarps = kDim >= 128 ? kDim / 64 : 2;
  static constexpr int kThreads = kWarp * kWarps;
  static constexpr int kKeys = 32;  // of a tile, from a position that is a multiple of 8 on
  // For scores a warp has 16 of the keys and a part of the elements, for results all keys and its
  // share of the elements.
  static constexpr int kParts = kWarps / 2, kPartDims = kDim / kParts;
  static constexpr int kShare = kDim / kWarps, kLaneDims = kShare / 8;
  static constexpr int kUnits = kPartDims / 32;  // of 8 elements of a key, by lane
  static constexpr int kKeyLoads = kPartDims * sizeof(Stored) / 64;
  static constexpr int kValueWords = kLaneDims * sizeof(Stored) / 4;
  static constexpr int kValueTiles = kLaneDims / 2;
  // Rows lie so that what eight neighbouring lanes read is in different banks.
  static constexpr int kQueryRow = kDim + (kScaled ? 8 : 32), kScoreRow = kKeys + 4;

  struct Shared {
    alignas(16) __nv_bfloat16 queries[kQueries * kQueryRow];
    union {
      alignas(16) float scores[2][kParts][kQueries][kScoreRow];
      alignas(16) float scratch[kWarps][kDim];  // of those who prepare the queries
    };
    alignas(16) float scales[kScaled ? 2 : 1][2][kScaled ? kKeys : 1];  // of keys, of values
    alignas(16) Stored new_key[kDim], new_value[kDim];
    float new_scales[2];
  };
};

template <typename Shape>
class DecodeTile {
 public:
  using Shared = typename Shape::Shared;
  using Stored = typename Shape::Stored;
  static constexpr bool kScaled = Shape::kScaled;
  static constexpr int kDim = Shape::kDim, kQueryTiles = Shape::kQueryTiles;

  // What a lane has of the running softmax of query 8·t + g: exponents are of 2; sum: of its keys.
  float largest[kQueryTiles], sum[kQueryTiles] = {};
  // And of the weighted values of queries 8·t + 2·q and the next: elements first_element() + 2·i
  // ([0] and [1]) and the next ([2] and [3]).
  float weighted[kQueryTiles][Shape::kValueTiles][4] = {};

  // The new key and value, if one of this block's, are not in the store yet: fresh is its position.
  __device__ DecodeTile(Shared& shared, const PagedRows<Stored>& keys,
                        const PagedRows<Stored>& values, const WarpPages& pages, int kv_head,
                        int first_seen, int end, int fresh)
      : shared_(shared),
        keys_(keys),
        values_(values),
        pages_(pages),
        kv_head_(kv_head),
        first_seen_(first_seen),
        end_(end),
        fresh_(fresh) {
#pragma unroll
    for (float& x : largest) x = -INFINITY;
  }

  __device__ static int warp() { return threadIdx.x / kWarp; }
  __device__ static int lane() { return threadIdx.x % kWarp; }
  __device__ static int g() { return lane() / 4; }
  __device__ static int q() { return lane() % 4; }
  __device__ static int first_element() { return warp() * Shape::kShare + g() * Shape::kLaneDims; }
  // The groups of a tile whose keys and values a lane has.
  __device__ static int key_group() { return warp() % 2 * 2 + g() % 2; }
  __device__ static int value_group() { return q(); }
  // Where the group of 8 keys from `position` on, or the last one, is, in units of 8 elements; by a
  // whole warp.
  __device__ uint32_t find_group(int position) const {
    const int64_t row = pages_.offset(keys_, min(position, (end_ - 1) / 8 * 8));
    return static_cast<uint32_t>((row + keys_.head_offset(kv_head_)) / 8);
  }

  // Where the keys of the tile that begins at `start` are, and those of the next one; a lane finds
  // one of the four groups, which lie in a page each.
  __device__ void find(int start) { row_ = find_group(start + q() * 8); }
  __device__ void find_next(int start) { next_row_ = find_group(start + q() * 8); }
  // To the next tile, and finds the one that begins at `start` after it.
  __device__ void advance(int start) {
    row_ = next_row_;
    find_next(start);
  }
  // Asks for what the next tile will load.
  __device__ void prefetch_next(int start) const {
#if __CUDA_ARCH__ >= 900
    const uint32_t group = __shfl_sync(0xffffffffu, next_row_, lane() / 8);
    if (warp() > 1 || !is_stored(start + lane())) return;
    const Stored* from =
        (warp() == 0 ? keys_ : values_).data + static_cast<int64_t>(group) * 8 + lane() % 8 * kDim;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from),
                 "r"(static_cast<int>(kDim * sizeof(Stored)))
                 : "memory");
#endif
  }
  // Of the tile that was found. What a query must not see counts as zeros: anything may be there.
  __device__ void load_keys(int start) {
    take_keys</*kShared=*/false>(keys_.data + group_row(key_group()), start);
    if constexpr (kScaled) {
      if (threadIdx.x < kWarp) {
        const bool wanted = is_stored(start + lane());
        const int64_t row = group_row(lane() / 8) / kDim + lane() % 8;
        key_scale_ = wanted ? __ldcg(keys_.scales + row) : 0;
        value_scale_ = wanted ? __ldcg(values_.scales + row) : 0;
      }
    }
  }
  __device__ void load_values(int start) {
    take_values</*kShared=*/false>(values_.data + static_cast<int64_t>(row_) * 8, start);
  }
  // Of a lane's key_group() and value_group(), from where that group's first row is.
  template <bool kShared>
  __device__ void take_keys(const Stored* group, int start) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Stored* from =
          group + key_row(r) * kDim + part() * Shape::kPartDims + q() * (16 / sizeof(Stored));
      // Scores of what is not seen are not looked at.
      const bool wanted = kShared || is_stored(start + 8 * key_group() + key_row(r));
#pragma unroll
      for (int c = 0; c < Shape::kKeyLoads; ++c) {
        key_[r][c] = wanted ? load_words<4, kShared>(from + c * (64 / sizeof(Stored))) : Words<4>{};
      }
    }
  }
  template <bool kShared>
  __device__ void take_values(const Stored* group, int start) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool wanted = is_stored(start + 8 * value_group() + 4 * s + i);
        value_[s][i] = wanted ? load_words<Shape::kValueWords, kShared>(group + (4 * s + i) * kDim +
                                                                        first_element())
                              : Words<Shape::kValueWords>{};
      }
    }
  }
  // Once the new key and value are in shared memory, if they belong to this tile.
  __device__ void take_fresh_key(int start) {
    const int fresh = fresh_ - start;
    if (fresh < 0 || fresh >= Shape::kKeys) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (fresh != 8 * key_group() + key_row(r)) continue;
      const Stored* from =
          shared_.new_key + part() * Shape::kPartDims + q() * (16 / sizeof(Stored));
#pragma unroll
      for (int c = 0; c < Shape::kKeyLoads; ++c) {
        key_[r][c] = load_words<4, true>(from + c * (64 / sizeof(Stored)));
      }
    }
    if constexpr (kScaled) {
      if (threadIdx.x == fresh) {
        key_scale_ = shared_.new_scales[0], value_scale_ = shared_.new_scales[1];
      }
    }
  }
  __device__ void take_fresh_value(int start) {
    const int fresh = fresh_ - start;
    if (fresh < 0 || fresh >= Shape::kKeys) return;
    const auto words = load_words<Shape::kValueWords, true>(shared_.new_value + first_element());
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (fresh == 8 * value_group() + 4 * s + i) value_[s][i] = words;
      }
    }
  }

  // This warp's part of the scores, to shared memory.
  __device__ void multiply_keys(int parity) {
    float scores[kQueryTiles][2][4] = {};
#pragma unroll
    for (int u = 0; u < Shape::kUnits; ++u) {
      uint32_t even[4], odd[4];  // rows g and g + 8 of the product
      unit_of(key_[0], u, even);
      unit_of(key_[1], u, odd);
      const int element = kScaled ? u / 2 * 64 + q() * 16 + u % 2 * 8 : u * 32 + q() * 8;
#pragma unroll
      for (int t = 0; t < kQueryTiles; ++t) {
        const uint4 b = *reinterpret_cast<const uint4*>(
            &shared_
                 .queries[(8 * t + g()) * Shape::kQueryRow + part() * Shape::kPartDims + element]);
        const uint32_t low[4] = {even[0], odd[0], even[1], odd[1]};
        const uint32_t high[4] = {even[2], odd[2], even[3], odd[3]};
        multiply_add(scores[t][0], low, b.x, b.y);
        multiply_add(scores[t][1], high, b.z, b.w);
      }
    }
#pragma unroll
    for (int t = 0; t < kQueryTiles; ++t) {
      const int key = 8 * key_group() + key_row(0), other = key_row(1) - key_row(0);
      float* to = &shared_.scores[parity][part()][8 * t + 2 * q()][key];
      to[0] = scores[t][0][0] + scores[t][1][0];
      to[Shape::kScoreRow] = scores[t][0][1] + scores[t][1][1];
      to[other] = scores[t][0][2] + scores[t][1][2];
      to[Shape::kScoreRow + other] = scores[t][0][3] + scores[t][1][3];
    }
    if constexpr (kScaled) {
      if (threadIdx.x < Shape::kKeys) {
        shared_.scales[parity][0][threadIdx.x] = key_scale_;
        shared_.scales[parity][1][threadIdx.x] = value_scale_;
      }
    }
  }

  // After a barrier. A lane has keys 8·q + 4·s + i of the tile, for query 8·t + g.
  __device__ void multiply_values(int start, int parity, float scale) {
    uint32_t weights[kQueryTiles][2][2];
#pragma unroll
    for (int t = 0; t < kQueryTiles; ++t) {
      float score[2][4];
      float top = largest[t];
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const int key = 8 * value_group() + 4 * s;
        const auto row = [&](int part) {
          return *reinterpret_cast<const float4*>(&shared_.scores[parity][part][8 * t + g()][key]);
        };
        float4 v = row(0);
#pragma unroll
        for (int part = 1; part < Shape::kParts; ++part) {
          const float4 more = row(part);
          v = {v.x + more.x, v.y + more.y, v.z + more.z, v.w + more.w};
        }
        score[s][0] = v.x, score[s][1] = v.y, score[s][2] = v.z, score[s][3] = v.w;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float factor = scale;
          if constexpr (kScaled) factor *= shared_.scales[parity][0][key + i];
          const int position = start + key + i;
          const bool seen = position >= first_seen_ && position < end_;
          score[s][i] = seen ? score[s][i] * factor : -INFINITY;
          top = fmaxf(top, score[s][i]);
        }
      }
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float factor = exp2f(largest[t] - top);
      largest[t] = top;
      sum[t] *= factor;
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const float one = exp2f(score[s][i] - top), other = exp2f(score[s][i + 1] - top);
          __nv_bfloat162 pair;
          if constexpr (kScaled) {
            const float* scales = &shared_.scales[parity][1][8 * value_group() + 4 * s + i];
            pair = __floats2bfloat162_rn(one * scales[0], other * scales[1]);
            sum[t] += one + other;
          } else {
            // The sum of the rounded ones: then they are shares of 1.
            pair = __floats2bfloat162_rn(one, other);
            sum[t] += __low2float(pair) + __high2float(pair);
          }
          weights[t][s][i / 2] = *reinterpret_cast<const uint32_t*>(&pair);
        }
      }
      const float even = __shfl_sync(0xffffffffu, factor, 8 * q());
      const float odd = __shfl_sync(0xffffffffu, factor, 8 * q() + 4);
#pragma unroll
      for (auto& tile : weighted[t]) {
        tile[0] *= even, tile[1] *= odd, tile[2] *= even, tile[3] *= odd;
      }
    }
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      uint32_t v[4][Shape::kLaneDims / 2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int w = 0; w < Shape::kValueWords; ++w) {
          if constexpr (kScaled) {
            const uint2 pairs = codes_to_bf16(value_[s][i].w[w]);
            v[i][2 * w] = pairs.x, v[i][2 * w + 1] = pairs.y;
          } else {
            v[i][w] = value_[s][i].w[w];
          }
        }
      }
#pragma unroll
      for (int tile = 0; tile < Shape::kValueTiles; ++tile) {
        const uint32_t a[4] = {__byte_perm(v[0][tile], v[1][tile], 0x5410),
                               __byte_perm(v[0][tile], v[1][tile], 0x7632),
                               __byte_perm(v[2][tile], v[3][tile], 0x5410),
                               __byte_perm(v[2][tile], v[3][tile], 0x7632)};
#pragma unroll
        for (int t = 0; t < kQueryTiles; ++t) {
          multiply_add(weighted[t][tile], a, weights[t][s][0], weights[t][s][1]);
        }
      }
    }
  }

  __device__ void finish() {
#pragma unroll
    for (float& s : sum) {
      s += __shfl_xor_sync(0xffffffffu, s, 1);
      s += __shfl_xor_sync(0xffffffffu, s, 2);
    }
  }

 private:
  __device__ static int part() { return warp() / 2; }
  // Of the two rows of the group that a lane has.
  __device__ static int key_row(int r) { return g() / 2 + 4 * r; }
  __device__ bool is_stored(int position) const {
    return position >= first_seen_ && position < end_ && position != fresh_;
  }
  // Of the first key of a group, in elements.
  __device__ int64_t group_row(int group) const {
    return static_cast<int64_t>(__shfl_sync(0xffffffffu, row_, group)) * 8;
  }
  __device__ static void unit_of(const Words<4> (&key)[Shape::kKeyLoads], int u,
                                 uint32_t (&words)[4]) {
    if constexpr (kScaled) {
      const uint2 low = codes_to_bf16(key[u / 2].w[u % 2 * 2]);
      const uint2 high = codes_to_bf16(key[u / 2].w[u % 2 * 2 + 1]);
      words[0] = low.x, words[1] = low.y, words[2] = high.x, words[3] = high.y;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = key[u].w[i];
    }
  }

  Shared& shared_;
  const PagedRows<Stored>&keys_, &values_;
  const WarpPages& pages_;
  int kv_head_, first_seen_, end_, fresh_;
  uint32_t row_ = 0, next_row_ = 0;    // in units of 8 elements
  Words<4> key_[2][Shape::kKeyLoads];  // [key_row()]
  Words<Shape::kValueWords> value_[2][4];
  float key_scale_ = 0, value_scale_ = 0;
};

}  // namespace braid::cuda

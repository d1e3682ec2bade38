#include "ops/attention/attention_kernels.h"

#include "ops/cpu/simd_math.h"

namespace braid::BRAID_ISA {
namespace {

// Dot products and weighted sums work on blocks of queries × keys or queries × vectors that fill
// the registers. Each number is computed by the same operations in the same order whatever the
// block, so that a query's result does not depend on which queries it is grouped with.
constexpr int kBlock = 8;

template <typename T>
BRAID_INLINE const T* key_at(const void* const* segments, int shift, int key, int64_t head_dim) {
  return static_cast<const T*>(segments[key >> shift]) + (key & ((1 << shift) - 1)) * head_dim;
}

// The sums over the lanes of eight vectors, each in the order of pairs, pairs of pairs and so on.
BRAID_INLINE void reduce_block(const Vf (&v)[kBlock], float (&sums)[kBlock]) {
#if defined(BRAID_ISA_avx2) || defined(BRAID_ISA_avx512)
  __m256 h[kBlock];
#pragma GCC unroll 8
  for (int i = 0; i < kBlock; ++i) {
#if defined(BRAID_ISA_avx512)
    h[i] = _mm256_add_ps(_mm512_castps512_ps256(v[i]), _mm512_extractf32x8_ps(v[i], 1));
#else
    h[i] = v[i];
#endif
  }
  const __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(h[0], h[1]), _mm256_hadd_ps(h[2], h[3]));
  const __m256 high = _mm256_hadd_ps(_mm256_hadd_ps(h[4], h[5]), _mm256_hadd_ps(h[6], h[7]));
  _mm256_storeu_ps(sums, _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20),
                                       _mm256_permute2f128_ps(low, high, 0x31)));
#else
  for (int i = 0; i < kBlock; ++i) sums[i] = reduce_add(v[i]);
#endif
}

// scores[q][k] = queries[q] · keys[k], kQueries × kBlock / kQueries of them.
template <int kQueries, typename T>
BRAID_INLINE void dot_block(const float* const* queries, const T* keys, int64_t head_dim,
                            float* scores) {
  constexpr int kKeys = kBlock / kQueries;
  Vf sums[kBlock] = {};
  int64_t d = 0;
  for (; d + kLanes <= head_dim; d += kLanes) {
    Vf key[kKeys];
#pragma GCC unroll 8
    for (int k = 0; k < kKeys; ++k) key[k] = load(keys + k * head_dim + d);
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; ++q) {
      const Vf query = load(queries[q] + d);
#pragma GCC unroll 8
      for (int k = 0; k < kKeys; ++k) sums[q * kKeys + k] = fma(query, key[k], sums[q * kKeys + k]);
    }
  }
  if (kLanes > 8 && d < head_dim) {
    const int64_t rest = head_dim - d;
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; ++q) {
      const Vf query = load_partial(queries[q] + d, rest);
#pragma GCC unroll 8
      for (int k = 0; k < kKeys; ++k) {
        sums[q * kKeys + k] =
            fma(query, load_partial(keys + k * head_dim + d, rest), sums[q * kKeys + k]);
      }
    }
  }
  float reduced[kBlock];
  reduce_block(sums, reduced);
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
    for (int k = 0; k < kKeys; ++k) scores[q * kTileKeys + k] = reduced[q * kKeys + k];
  }
}

// Scores of kQueries queries with the keys [begin, end) (rounded outward to blocks).
template <int kQueries, typename T>
void dot_queries(const float* const* queries, const KeyTile& tile, int begin, int end,
                 int64_t head_dim, float* scores) {
  constexpr int kKeys = kBlock / kQueries;
  for (int key = begin / kKeys * kKeys; key < end; key += kKeys) {
    dot_block<kQueries>(queries, key_at<T>(tile.keys, tile.segment_shift, key, head_dim), head_dim,
                        scores + key);
  }
}

// weighted[q] = weighted[q] · factors[q] + Σ_key probabilities[q][key] · value[key], keys
// ascending, for kVectors vectors of elements from d on (kVectors = 0: fewer than kLanes elements).
template <int kQueries, int kVectors, typename T>
BRAID_INLINE void add_values(const QueryTile& tile_queries, const KeyTile& tile, int first,
                             const float* factors, int begin, int end, int64_t d) {
  constexpr int kWidth = kVectors == 0 ? 1 : kVectors;
  const int64_t head_dim = tile_queries.head_dim;
  const float* probabilities = tile_queries.probabilities + first * kTileKeys;
  float* weighted = tile_queries.weighted + first * head_dim + d;
  const auto read = [&](const auto* p, int v) __attribute__((always_inline)) {
    if constexpr (kVectors == 0) return load_partial(p, head_dim - d);
    return load(p + v * kLanes);
  };
  Vf sums[kQueries][kWidth];
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
    for (int v = 0; v < kWidth; ++v) sums[q][v] = read(weighted + q * head_dim, v) * factors[q];
  }
  for (int key = begin; key < end; ++key) {
    const T* row = key_at<T>(tile.values, tile.segment_shift, key, head_dim) + d;
    Vf value[kWidth];
#pragma GCC unroll 8
    for (int v = 0; v < kWidth; ++v) value[v] = read(row, v);
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; ++q) {
      const Vf p = splat(probabilities[q * kTileKeys + key]);
#pragma GCC unroll 8
      for (int v = 0; v < kWidth; ++v) sums[q][v] = fma(p, value[v], sums[q][v]);
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
    if constexpr (kVectors == 0) {
      store_partial(weighted + q * head_dim, head_dim - d, sums[q][0]);
    } else {
#pragma GCC unroll 8
      for (int v = 0; v < kWidth; ++v) store(weighted + q * head_dim + v * kLanes, sums[q][v]);
    }
  }
}

template <int kQueries, typename T>
void weigh_values(const QueryTile& queries, const KeyTile& tile, int first, const float* factors,
                  int begin, int end) {
  constexpr int kVectors = kBlock / kQueries;
  int64_t d = 0;
  for (; d + kVectors * kLanes <= queries.head_dim; d += kVectors * kLanes) {
    add_values<kQueries, kVectors, T>(queries, tile, first, factors, begin, end, d);
  }
  for (; d + kLanes <= queries.head_dim; d += kLanes) {
    add_values<kQueries, 1, T>(queries, tile, first, factors, begin, end, d);
  }
  if (kLanes > 8 && d < queries.head_dim) {
    add_values<kQueries, 0, T>(queries, tile, first, factors, begin, end, d);
  }
}

float exp_of(float x) { return exp(splat(x))[0]; }

// Turns the scores of one query into e^(score − largest), zero for keys it does not see; returns
// the factor for what was summed before.
float fold_scores(QueryTile& queries, int q) {
  constexpr int kVectors = kTileKeys / kLanes;
  float* row = queries.probabilities + q * kTileKeys;
  const Vi begin = (Vi{} + queries.begin[q]), end = (Vi{} + queries.end[q]);
  const Vf nothing = splat(-__builtin_inff());
  Vf scores[kVectors];
  Vf tops = nothing;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const Vi key = lane_index() + v * kLanes;
    scores[v] =
        select((key >= begin) & (key < end), load(row + v * kLanes) * queries.scale, nothing);
    tops = max(tops, scores[v]);
  }
  const float top = reduce_max(tops);
  float factor = 1;
  if (top > queries.largest[q]) {
    factor = exp_of(queries.largest[q] - top);
    queries.largest[q] = top;
  }
  const Vf largest = splat(queries.largest[q]);
  Vf sum{};
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const Vf p = exp(scores[v] - largest);
    store(row + v * kLanes, p);
    sum = sum + p;
  }
  queries.sum[q] = queries.sum[q] * factor + reduce_add(sum);
  return factor;
}

template <int kQueries, typename T>
void fold_block(QueryTile& queries, const KeyTile& tile, int first) {
  int begin = kTileKeys, end = 0;
  bool same = true;
  for (int q = first; q < first + kQueries; ++q) {
    same = same && queries.begin[q] == queries.begin[first] && queries.end[q] == queries.end[first];
    if (queries.begin[q] >= queries.end[q]) continue;
    begin = queries.begin[q] < begin ? queries.begin[q] : begin;
    end = queries.end[q] > end ? queries.end[q] : end;
  }
  if (begin >= end) return;
  dot_queries<kQueries, T>(queries.queries + first, tile, begin, end, queries.head_dim,
                           queries.probabilities + first * kTileKeys);
  float factors[kQueries];
  for (int q = 0; q < kQueries; ++q) {
    if (queries.begin[first + q] < queries.end[first + q]) {
      factors[q] = fold_scores(queries, first + q);
    }
  }
  if (same) {
    weigh_values<kQueries, T>(queries, tile, first, factors, begin, end);
    return;
  }
  // Values of keys that a query does not see must not meet it, not even with weight 0: they may be
  // anything.
  for (int q = 0; q < kQueries; ++q) {
    if (queries.begin[first + q] < queries.end[first + q]) {
      weigh_values<1, T>(queries, tile, first + q, factors + q, queries.begin[first + q],
                         queries.end[first + q]);
    }
  }
}

template <typename T>
void fold(QueryTile& queries, const KeyTile& tile) {
  int q = 0;
  for (; q + 4 <= queries.num_queries; q += 4) fold_block<4, T>(queries, tile, q);
  if (q + 2 <= queries.num_queries) {
    fold_block<2, T>(queries, tile, q);
    q += 2;
  }
  if (q < queries.num_queries) fold_block<1, T>(queries, tile, q);
}

void widen(const BFloat16* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, load(from + i));
  if (i < n) store_partial(to + i, n - i, load_partial(from + i, n - i));
}

void fold_bf16(QueryTile& queries, const KeyTile& tile) {
  // With many queries it pays to widen the tile once.
  constexpr int kManyQueries = 16;
  if (queries.num_queries < kManyQueries) {
    fold<BFloat16>(queries, tile);
    return;
  }
  const int64_t segment_elements = (int64_t{1} << tile.segment_shift) * queries.head_dim;
  KeyTile wide;
  wide.segment_shift = tile.segment_shift;
  float* to = queries.expanded;
  for (int s = 0; s < kTileKeys >> tile.segment_shift; ++s) {
    widen(static_cast<const BFloat16*>(tile.keys[s]), to, segment_elements);
    wide.keys[s] = to;
    to += segment_elements;
    widen(static_cast<const BFloat16*>(tile.values[s]), to, segment_elements);
    wide.values[s] = to;
    to += segment_elements;
  }
  fold<float>(queries, wide);
}

void merge(float* largest, float* sum, float* weighted, float other_largest, float other_sum,
           const float* other_weighted, int64_t head_dim) {
  const float top = other_largest > *largest ? other_largest : *largest;
  const float a = *largest == top ? 1.0f : exp_of(*largest - top);
  const float b = other_largest == top ? 1.0f : exp_of(other_largest - top);
  *largest = top;
  *sum = *sum * a + other_sum * b;
  int64_t d = 0;
  for (; d + kLanes <= head_dim; d += kLanes) {
    store(weighted + d, load(weighted + d) * a + load(other_weighted + d) * b);
  }
  for (; d < head_dim; ++d) weighted[d] = weighted[d] * a + other_weighted[d] * b;
}

void finish(const float* weighted, float sum, float* out, int64_t head_dim) {
  int64_t d = 0;
  for (; d + kLanes <= head_dim; d += kLanes) store(out + d, load(weighted + d) / sum);
  for (; d < head_dim; ++d) out[d] = weighted[d] / sum;
}

void to_bf16(const float* from, void* to, int64_t n) {
  BFloat16* out = static_cast<BFloat16*>(to);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, load(from + i));
  for (; i < n; ++i) out[i] = to_bfloat16(from[i]);
}

}  // namespace

const AttentionKernels kAttentionKernels = {&fold<float>, &fold_bf16, &merge, &finish, &to_bf16};

}  // namespace braid::BRAID_ISA

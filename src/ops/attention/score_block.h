#pragma once

// Products of queries with keys, for kernel files (see ops/cpu/dispatch.h).

#include "ops/attention/ask_ahead.h"
#include "ops/attention/attention_kernels.h"
#include "ops/cpu/lane_reduce.h"
#include "ops/cpu/simd_int8.h"
#include "ops/cpu/simd_math.h"

namespace braid::BRAID_ISA {

// A score is a sum in kLanes parts (element d goes to part d % kLanes, d ascending), the parts then
// added in halves. Every block computes it so: a query's scores do not depend on the block.

// Key `key` of a tile, in whatever its elements are.
template <typename T>
BRAID_INLINE const T* tile_row(const void* const* segments, int shift, int key, int64_t head_dim) {
  return static_cast<const T*>(segments[key >> shift]) + (key & ((1 << shift) - 1)) * head_dim;
}

// scores[q · kTileKeys + k] = lanes of sums[q · kKeys + k] added up.
template <int kQueries, int kKeys>
BRAID_INLINE void store_scores(Vf (&sums)[kQueries * kKeys], float* scores) {
  constexpr int kCount = kQueries * kKeys;
#if defined(BRAID_ISA_avx512)
  if constexpr (kCount == 16 && kKeys == 4) {
    const Vf all = reduce_lanes(sums, AddLanes());
    _mm_storeu_ps(scores, _mm512_castps512_ps128(all));
    _mm_storeu_ps(scores + kTileKeys, _mm512_extractf32x4_ps(all, 1));
    _mm_storeu_ps(scores + 2 * kTileKeys, _mm512_extractf32x4_ps(all, 2));
    _mm_storeu_ps(scores + 3 * kTileKeys, _mm512_extractf32x4_ps(all, 3));
    return;
  }
#endif
#if defined(BRAID_ISA_avx2) || defined(BRAID_ISA_avx512)
  const AddLanes add;
  __m256 halves[kCount];
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) {
#if defined(BRAID_ISA_avx512)
    halves[i] = _mm256_add_ps(_mm512_castps512_ps256(sums[i]), _mm512_extractf32x8_ps(sums[i], 1));
#else
    halves[i] = sums[i];
#endif
  }
  constexpr int kEights = kCount / 8;
#pragma GCC unroll 2
  for (int e = 0; e < kEights; ++e) {
    __m256* v = halves + 8 * e;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) v[i] = fold_lanes<4>(v[i], v[i + 4], add);
    v[0] = fold_lanes<2>(v[0], v[2], add);
    v[1] = fold_lanes<2>(v[1], v[3], add);
    const __m256 eight = fold_lanes<1>(v[0], v[1], add);
    float* to = scores + 8 * e / kKeys * kTileKeys;
    if constexpr (kKeys == 8) {
      _mm256_storeu_ps(to, eight);
    } else if constexpr (kKeys == 4) {
      _mm_storeu_ps(to, _mm256_castps256_ps128(eight));
      _mm_storeu_ps(to + kTileKeys, _mm256_extractf128_ps(eight, 1));
    } else {
      const __m128 low = _mm256_castps256_ps128(eight), high = _mm256_extractf128_ps(eight, 1);
      _mm_storel_pi((__m64*)to, low);
      _mm_storeh_pi((__m64*)(to + kTileKeys), low);
      _mm_storel_pi((__m64*)(to + 2 * kTileKeys), high);
      _mm_storeh_pi((__m64*)(to + 3 * kTileKeys), high);
    }
  }
  if constexpr (kCount % 8 == 4) {
    static_assert(kKeys == 4);
    __m256* v = halves + 8 * kEights;
    v[0] = fold_lanes<4>(v[0], v[2], add);
    v[1] = fold_lanes<4>(v[1], v[3], add);
    v[0] = fold_lanes<2>(v[0], v[1], add);  // 0 0 1 1 2 2 3 3
    v[0] = v[0] + _mm256_permute_ps(v[0], _MM_SHUFFLE(2, 3, 0, 1));
    const __m128 low = _mm256_castps256_ps128(v[0]), high = _mm256_extractf128_ps(v[0], 1);
    _mm_storeu_ps(scores + (kQueries - 1) * kTileKeys,
                  _mm_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0)));
  }
#else
  for (int i = 0; i < kCount; ++i) scores[i / kKeys * kTileKeys + i % kKeys] = reduce_add(sums[i]);
#endif
}

// Products of kQueries queries, `stride` apart, with kKeys keys of head_dim elements, key_stride
// apart.
template <int kQueries, int kKeys, typename T>
BRAID_INLINE void score_block(const float* queries, int64_t stride, const T* keys,
                              int64_t key_stride, int64_t head_dim, float* scores) {
  Vf sums[kQueries * kKeys] = {};
  int64_t d = 0;
#pragma GCC unroll 1
  for (; d + kLanes <= head_dim; d += kLanes) {
    Vf query[kQueries];
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; ++q) query[q] = load(queries + q * stride + d);
#pragma GCC unroll 8
    for (int k = 0; k < kKeys; ++k) {
      const Vf key = load(keys + k * key_stride + d);
#pragma GCC unroll 8
      for (int q = 0; q < kQueries; ++q) {
        sums[q * kKeys + k] = fma(query[q], key, sums[q * kKeys + k]);
      }
    }
  }
  if (kLanes > 8 && d < head_dim) {
#pragma GCC unroll 8
    for (int k = 0; k < kKeys; ++k) {
      const Vf key = load_partial(keys + k * key_stride + d, head_dim - d);
#pragma GCC unroll 8
      for (int q = 0; q < kQueries; ++q) {
        sums[q * kKeys + k] = fma(load(queries + q * stride + d), key, sums[q * kKeys + k]);
      }
    }
  }
  store_scores<kQueries, kKeys>(sums, scores);
}

// Scores of kQueries queries from `first` on with those of the keys [begin, end) (rounded outward
// to blocks) that one of them sees. keys: that of `begin`.
template <int kQueries, int kKeys, typename T>
void score_queries(const QueryTile& tile, int first, const T* keys, int64_t key_stride,
                   int64_t head_dim, int begin, int end, AskAhead& ahead) {
  int seen_begin = kTileKeys, seen_end = 0;
  for (int q = first; q < first + kQueries; ++q) {
    seen_begin = tile.begin[q] < seen_begin ? tile.begin[q] : seen_begin;
    seen_end = tile.end[q] > seen_end ? tile.end[q] : seen_end;
  }
  const int from = seen_begin > begin ? seen_begin / kKeys * kKeys : begin;
  const int64_t stride = padded_dim(tile.head_dim);
  const float* queries = tile.queries + first * stride;
  float* scores = tile.probabilities + first * kTileKeys;
  for (int key = from; key < end && key < seen_end; key += kKeys) {
    score_block<kQueries, kKeys, T>(queries, stride, keys + (key - begin) * key_stride, key_stride,
                                    head_dim, scores + key);
    ahead.some();
  }
}

// The same for all queries of the tile. Blocks fill the registers: 12 of 16 with AVX2, 16 of 32
// with AVX-512 (four loads fewer than products in either).
template <typename T>
void score_all(const QueryTile& tile, const T* keys, int64_t key_stride, int64_t head_dim,
               int begin, int end, AskAhead& ahead) {
  constexpr int kQueries = kLanes == 16 ? 4 : 3;
  int q = 0;
  int left = tile.num_queries;
  for (; left > 4 || left == kQueries; q += kQueries, left -= kQueries) {
    score_queries<kQueries, 4, T>(tile, q, keys, key_stride, head_dim, begin, end, ahead);
  }
  if (left == 4) {
    score_queries<4, 2, T>(tile, q, keys, key_stride, head_dim, begin, end, ahead);
  } else if (left == 3) {
    score_queries<3, 4, T>(tile, q, keys, key_stride, head_dim, begin, end, ahead);
  } else if (left == 2) {
    score_queries<2, 4, T>(tile, q, keys, key_stride, head_dim, begin, end, ahead);
  } else if (left == 1) {
    score_queries<1, 8, T>(tile, q, keys, key_stride, head_dim, begin, end, ahead);
  }
}

}  // namespace braid::BRAID_ISA

#pragma once

// Weighted sums of values, for kernel files (see ops/cpu/dispatch.h).

#include "ops/attention/attention_kernels.h"
#include "ops/attention/score_block.h"
#include "ops/cpu/simd_math.h"

namespace braid::BRAID_ISA {

// weighted = weighted · factor + Σ_key probability[key] · value[key], one fma a key, keys
// ascending: whatever the block, so that a query's result does not depend on it. Values of keys
// that a query does not see must not meet it, not even with weight 0: they may be anything.

inline constexpr int kStripDims = 64;

// The values [begin, end) of a tile, elements [d, d + kStripDims) of them, as float32: row `key`
// of strip, [kTileKeys, kStripDims]; zeros behind head_dim.
template <typename T>
BRAID_INLINE void pack_strip(const KeyTile& tile, int begin, int end, int64_t d, int64_t head_dim,
                             float* strip) {
  const int64_t left = head_dim - d;
  for (int key = begin; key < end; ++key) {
    const T* from = tile_row<T>(tile.values, tile.segment_shift, key, head_dim) + d;
    float* to = strip + key * kStripDims;
    if (left >= kStripDims) {
#pragma GCC unroll 16
      for (int i = 0; i < kStripDims; i += kLanes) store(to + i, load(from + i));
      continue;
    }
    int64_t i = 0;
    for (; i + kLanes <= left; i += kLanes) store(to + i, load(from + i));
    for (; i < padded_dim(left); i += kLanes) {
      store(to + i, i < left ? load_partial(from + i, left - i) : Vf{});
    }
  }
}

// The keys of the tile to come, if there is one.
template <typename T>
BRAID_INLINE AskAhead ask_for_keys(const KeyTile* next, int64_t head_dim, int64_t calls) {
  if (next == nullptr) return {};
  return {next->keys, next->segment_shift, 0, kTileKeys, head_dim * static_cast<int64_t>(sizeof(T)),
          calls};
}

// kQueries queries from `first` on, kVectors vectors of elements.
template <int kQueries, int kVectors>
BRAID_INLINE void weigh_block(const float* probabilities, const float* strip, float* weighted,
                              int64_t stride, const float* factors, int begin, int end) {
  Vf sums[kQueries][kVectors];
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sums[q][v] = load(weighted + q * stride + v * kLanes) * factors[q];
    }
  }
  const float* row = strip + begin * kStripDims;
#pragma GCC unroll 1
  for (int key = begin; key < end; ++key, row += kStripDims) {
    Vf value[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) value[v] = load(row + v * kLanes);
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; ++q) {
      const Vf p = splat(probabilities[q * kTileKeys + key]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[q][v] = fma(p, value[v], sums[q][v]);
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      store(weighted + q * stride + v * kLanes, sums[q][v]);
    }
  }
}

// All `dims` elements of a strip.
template <int kQueries>
void weigh_strip(const float* probabilities, const float* strip, int64_t dims, float* weighted,
                 int64_t stride, const float* factors, int begin, int end) {
  // 12 of 16 registers hold sums, 24 of 32 with AVX-512.
  constexpr int kFit = (kLanes == 16 ? 24 : 12) / kQueries;
  constexpr int kMost = kStripDims / kLanes;
  constexpr int kEven = kFit >= 8 ? 8 : kFit >= 4 ? 4 : 2;
  constexpr int kVectors = kEven < kMost ? kEven : kMost;
  int64_t i = 0;
  for (; i + kVectors * kLanes <= dims; i += kVectors * kLanes) {
    weigh_block<kQueries, kVectors>(probabilities, strip + i, weighted + i, stride, factors, begin,
                                    end);
  }
  for (; i < dims; i += kLanes) {
    weigh_block<kQueries, 1>(probabilities, strip + i, weighted + i, stride, factors, begin, end);
  }
}

// The keys that all of several queries see; empty: begin >= end.
struct CommonKeys {
  int begin = 0;
  int end = kTileKeys;
};
BRAID_INLINE CommonKeys common_keys(const QueryTile& tile, int first, int count) {
  CommonKeys keys;
  for (int q = first; q < first + count; ++q) {
    keys.begin = tile.begin[q] > keys.begin ? tile.begin[q] : keys.begin;
    keys.end = tile.end[q] < keys.end ? tile.end[q] : keys.end;
  }
  return keys;
}

// Calls together(begin, end, factors) for the keys that all of kQueries queries see, and
// alone(q, begin, end, factor) for those before and behind them that only some do.
template <int kQueries, typename Together, typename Alone>
BRAID_INLINE void for_ranges(const QueryTile& tile, int first, const float* factors,
                             const Together& together, const Alone& alone) {
  const CommonKeys keys = common_keys(tile, first, kQueries);
  if (keys.begin >= keys.end) {
    for (int q = first; q < first + kQueries; ++q) {
      if (tile.begin[q] < tile.end[q]) alone(q, tile.begin[q], tile.end[q], factors[q]);
    }
    return;
  }
  float rest[kQueries];
  for (int i = 0; i < kQueries; ++i) {
    const int q = first + i;
    rest[i] = factors[q];
    if (tile.begin[q] == keys.begin) continue;
    alone(q, tile.begin[q], keys.begin, factors[q]);
    rest[i] = 1;
  }
  together(keys.begin, keys.end, rest);
  for (int q = first; q < first + kQueries; ++q) {
    if (tile.end[q] > keys.end) alone(q, keys.end, tile.end[q], 1.0f);
  }
}

template <int kQueries>
void weigh_strip_of(const QueryTile& tile, int first, const float* strip, int64_t d, int64_t dims,
                    const float* factors, AskAhead& ahead) {
  ahead.some();
  const int64_t stride = padded_dim(tile.head_dim);
  const float* probabilities = tile.probabilities + first * kTileKeys;
  float* weighted = tile.weighted + first * stride + d;
  for_ranges<kQueries>(
      tile, first, factors,
      [&](int begin, int end, const float* rest) {
        weigh_strip<kQueries>(probabilities, strip, dims, weighted, stride, rest, begin, end);
      },
      [&](int q, int begin, int end, float factor) {
        weigh_strip<1>(tile.probabilities + q * kTileKeys, strip, dims,
                       tile.weighted + q * stride + d, stride, &factor, begin, end);
      });
}

// All queries of the tile, with values repacked strip by strip; for many queries.
template <typename T>
void weigh_all_packed(const QueryTile& queries, const KeyTile& tile, const KeyTile* next, int begin,
                      int end, const float* factors) {
  const int64_t padded = padded_dim(queries.head_dim);
  const int64_t strips = (padded + kStripDims - 1) / kStripDims;
  AskAhead ahead = ask_for_keys<T>(next, queries.head_dim, strips * (queries.num_queries / 6 + 1));
  for (int64_t d = 0; d < padded; d += kStripDims) {
    const int64_t dims = padded - d < kStripDims ? padded - d : kStripDims;
    pack_strip<T>(tile, begin, end, d, queries.head_dim, queries.packed);
    int q = 0;
    for (; q + 6 <= queries.num_queries; q += 6) {
      weigh_strip_of<6>(queries, q, queries.packed, d, dims, factors, ahead);
    }
    if (q + 3 <= queries.num_queries) {
      weigh_strip_of<3>(queries, q, queries.packed, d, dims, factors, ahead);
      q += 3;
    }
    if (q + 2 <= queries.num_queries) {
      weigh_strip_of<2>(queries, q, queries.packed, d, dims, factors, ahead);
      q += 2;
    }
    if (q < queries.num_queries) {
      weigh_strip_of<1>(queries, q, queries.packed, d, dims, factors, ahead);
    }
  }
}

// kQueries queries and kKeys neighbouring values, element by element over the whole row.
template <int kQueries, int kKeys, typename T>
BRAID_INLINE void weigh_rows(const float* probabilities, const T* values, int64_t head_dim,
                             float* weighted, int64_t stride) {
  Vf p[kQueries][kKeys];
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
    for (int k = 0; k < kKeys; ++k) p[q][k] = splat(probabilities[q * kTileKeys + k]);
  }
  const auto add = [&](int64_t d, const Vf(&value)[kKeys]) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; ++q) {
      Vf sum = load(weighted + q * stride + d);
#pragma GCC unroll 8
      for (int k = 0; k < kKeys; ++k) sum = fma(p[q][k], value[k], sum);
      store(weighted + q * stride + d, sum);
    }
  };
  int64_t d = 0;
  for (; d + kLanes <= head_dim; d += kLanes) {
    Vf value[kKeys];
#pragma GCC unroll 8
    for (int k = 0; k < kKeys; ++k) value[k] = load(values + k * head_dim + d);
    add(d, value);
  }
  if (kLanes > 8 && d < head_dim) {
    Vf value[kKeys];
#pragma GCC unroll 8
    for (int k = 0; k < kKeys; ++k) {
      value[k] = load_partial(values + k * head_dim + d, head_dim - d);
    }
    add(d, value);
  }
}

template <int kQueries, typename T>
void weigh_range(const QueryTile& queries, const KeyTile& tile, AskAhead& ahead, int first,
                 int begin, int end, const float* factors) {
  constexpr int kKeys = kQueries <= 2 || kLanes == 16 ? 4 : 2;
  const int64_t head_dim = queries.head_dim;
  const int64_t stride = padded_dim(head_dim);
  float* weighted = queries.weighted + first * stride;
  for (int q = 0; q < kQueries; ++q) {
    if (factors[q] == 1) continue;
    float* row = weighted + q * stride;
    for (int64_t d = 0; d < stride; d += kLanes) store(row + d, load(row + d) * factors[q]);
  }
  const float* probabilities = queries.probabilities + first * kTileKeys;
  int key = begin;
  while (key < end) {
    const int segment_end = ((key >> tile.segment_shift) + 1) << tile.segment_shift;
    const int stop = segment_end < end ? segment_end : end;
    const T* row = tile_row<T>(tile.values, tile.segment_shift, key, head_dim);
    for (; key + kKeys <= stop; key += kKeys, row += kKeys * head_dim) {
      ahead.some();
      weigh_rows<kQueries, kKeys, T>(probabilities + key, row, head_dim, weighted, stride);
    }
    for (; key < stop; ++key, row += head_dim) {
      weigh_rows<kQueries, 1, T>(probabilities + key, row, head_dim, weighted, stride);
    }
  }
}

template <int kQueries, typename T>
void weigh_rows_of(const QueryTile& queries, const KeyTile& tile, AskAhead& ahead, int first,
                   const float* factors) {
  for_ranges<kQueries>(
      queries, first, factors,
      [&](int begin, int end, const float* rest) {
        weigh_range<kQueries, T>(queries, tile, ahead, first, begin, end, rest);
      },
      [&](int q, int begin, int end, float factor) {
        weigh_range<1, T>(queries, tile, ahead, q, begin, end, &factor);
      });
}

// All queries of the tile, values read row by row as they are; for few queries.
template <typename T>
void weigh_all_rows(const QueryTile& queries, const KeyTile& tile, const KeyTile* next,
                    const float* factors) {
  // At most four values a call, of queries four at a time.
  AskAhead ahead =
      ask_for_keys<T>(next, queries.head_dim, kTileKeys / 4 * ((queries.num_queries + 3) / 4));
  int q = 0;
  for (; q + 4 <= queries.num_queries; q += 4) {
    weigh_rows_of<4, T>(queries, tile, ahead, q, factors);
  }
  if (q + 2 <= queries.num_queries) {
    weigh_rows_of<2, T>(queries, tile, ahead, q, factors);
    q += 2;
  }
  if (q < queries.num_queries) weigh_rows_of<1, T>(queries, tile, ahead, q, factors);
}

}  // namespace braid::BRAID_ISA

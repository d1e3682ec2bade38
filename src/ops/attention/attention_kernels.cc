#include "ops/attention/attention_kernels.h"

#include "ops/attention/score_block.h"
#include "ops/attention/softmax_rows.h"
#include "ops/attention/value_block.h"

namespace braid::BRAID_ISA {
namespace {

// From this many queries on it pays to widen and repack what they meet.
constexpr int kManyQueries = 6;
// Keys taken together are to stay in the first-level cache while the queries pass.
constexpr int64_t kKeyBytes = 16384;

template <typename T>
constexpr bool kIsF32 = sizeof(T) == sizeof(float);

// `count` rows of head_dim elements as float32, padded with zeros.
template <typename T>
void pack_rows(const T* from, int count, int64_t head_dim, float* to) {
  const int64_t padded = padded_dim(head_dim);
  for (int row = 0; row < count; ++row, from += head_dim, to += padded) {
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) store(to + d, load(from + d));
    for (; d < padded; d += kLanes) {
      store(to + d, d < head_dim ? load_partial(from + d, head_dim - d) : Vf{});
    }
  }
}

// Scores of the keys [begin, end) (rounded outward to eights).
template <typename T>
void score_tile(const QueryTile& queries, const KeyTile& tile, int begin, int end) {
  const int64_t head_dim = queries.head_dim;
  const int64_t padded = padded_dim(head_dim);
  int step = 8;
  while (2 * step <= kTileKeys && 2 * step * padded * 4 <= kKeyBytes) step *= 2;
  if (step > 1 << tile.segment_shift) step = 1 << tile.segment_shift;
  const bool pack = queries.num_queries >= kManyQueries && !(kIsF32<T> && head_dim == padded);
  for (int start = begin / step * step; start < end; start += step) {
    const int from = start > begin ? start : begin / 8 * 8;
    const int to = start + step < end ? start + step : (end + 7) / 8 * 8;
    // A block of scores is of 8 to 16 products.
    AskAhead ahead(tile.values, tile.segment_shift, from, to,
                   head_dim * static_cast<int64_t>(sizeof(T)),
                   (queries.num_queries * (to - from) + 11) / 12);
    const T* rows = tile_row<T>(tile.keys, tile.segment_shift, from, head_dim);
    if (pack) {
      pack_rows(rows, to - from, head_dim, queries.packed);
      score_all<float>(queries, queries.packed, padded, padded, from, to, ahead);
    } else {
      score_all<T>(queries, rows, head_dim, head_dim, from, to, ahead);
    }
  }
}

void gather_scales(const float* const* segments, int shift, int begin, int end, float* scales) {
  for (int key = begin; key < end; ++key) {
    scales[key] = segments[key >> shift][key & ((1 << shift) - 1)];
  }
}

template <typename T>
void fold(QueryTile& queries, const KeyTile& tile, const KeyTile* next) {
  int begin = kTileKeys, end = 0;
  for (int q = 0; q < queries.num_queries; ++q) {
    if (queries.begin[q] >= queries.end[q]) continue;
    begin = queries.begin[q] < begin ? queries.begin[q] : begin;
    end = queries.end[q] > end ? queries.end[q] : end;
  }
  if (begin >= end) return;
  score_tile<T>(queries, tile, begin, end);
  float factors[kTileQueries];
  if constexpr (sizeof(T) == 1) {
    float key_scales[kTileKeys] = {}, value_scales[kTileKeys] = {};
    gather_scales(tile.key_scales, tile.segment_shift, begin, end, key_scales);
    gather_scales(tile.value_scales, tile.segment_shift, begin, end, value_scales);
    softmax_all<true>(queries, key_scales, value_scales, factors);
  } else {
    softmax_all<false>(queries, nullptr, nullptr, factors);
  }
  if (queries.num_queries >= kManyQueries) {
    weigh_all_packed<T>(queries, tile, next, begin, end, factors);
  } else {
    weigh_all_rows<T>(queries, tile, next, factors);
  }
}

void merge(float* largest, float* sum, float* weighted, float other_largest, float other_sum,
           const float* other_weighted, int64_t head_dim) {
  const float top = other_largest > *largest ? other_largest : *largest;
  const float a = *largest == top ? 1.0f : exp(splat(*largest - top))[0];
  const float b = other_largest == top ? 1.0f : exp(splat(other_largest - top))[0];
  *largest = top;
  *sum = *sum * a + other_sum * b;
  for (int64_t d = 0; d < padded_dim(head_dim); d += kLanes) {
    store(weighted + d, load(weighted + d) * a + load(other_weighted + d) * b);
  }
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

void to_i8(const float* from, int8_t* to, float* scale, float static_scale, int64_t n) {
  // Magnitudes in order of their bits; those of infinities and NaN come last.
  Vi tops{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vi bits = (Vi)load(from + i) & 0x7fffffff;
    tops = bits > tops ? bits : tops;
  }
  if (i < n) {
    const Vi bits = (Vi)load_partial(from + i, n - i) & 0x7fffffff;
    tops = bits > tops ? bits : tops;
  }
  int32_t top = 0;
  for (int l = 0; l < kLanes; ++l) top = tops[l] > top ? tops[l] : top;
  float largest;
  __builtin_memcpy(&largest, &top, sizeof(largest));
  const bool finite = top < 0x7f800000;
  float inverse = 0;
  if (!finite) {
    *scale = __builtin_nanf("");
  } else if (static_scale > 0) {
    inverse = 1.0f / static_scale;
    *scale = static_scale;
  } else {
    // Codes of magnitudes too small for 127 / largest to be finite are 0.
    if (largest >= 0x1p-100f) inverse = 127.0f / largest;
    *scale = inverse > 0 ? largest / 127.0f : 0.0f;
  }
  const Vf top_code = splat(127.0f);
  const Vf kRound = splat(0x1.8p23f);  // adding it leaves the nearest integer in the low bits
  for (i = 0; i < n; i += kLanes) {
    const int64_t count = n - i < kLanes ? n - i : kLanes;
    const Vf x = count == kLanes ? load(from + i) : load_partial(from + i, count);
    Vf steps = x * inverse;
    steps = steps > top_code ? top_code : steps;
    steps = steps < -top_code ? -top_code : steps;
    const Vi codes = (Vi)(steps + kRound) - (Vi)kRound;
    for (int64_t l = 0; l < count; ++l) {
      to[i + l] = finite ? static_cast<int8_t>(codes[l]) : int8_t{0};
    }
  }
}

}  // namespace

const AttentionKernels kAttentionKernels = {&fold<float>, &fold<BFloat16>, &fold<int8_t>, &merge,
                                            &finish,      &to_bf16,        &to_i8};

}  // namespace braid::BRAID_ISA

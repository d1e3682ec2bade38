#pragma once

// The online softmax of a tile, for kernel files (see ops/cpu/dispatch.h).

#include "ops/attention/attention_kernels.h"
#include "ops/cpu/lane_reduce.h"
#include "ops/cpu/simd_math.h"

namespace braid::BRAID_ISA {

// e^x for x <= 0: exp() without its upper end.
BRAID_INLINE Vf exp_of_nonpositive(Vf x) {
  const Vf low = splat(-87.3f);
  const ReducedExp e = reduced_exp(MaxLanes()(low, x));
  return select(x < low, Vf{}, fma(e.expm1, e.power, e.power));
}

// Turns the scores of up to kLanes queries, none of which sees nothing, into e^(score − largest),
// zero for keys that one does not see; factors: what their sums so far are to be multiplied with.
// kScaled: keys have scales, [kTileKeys], and the results are multiplied with those of the values.
template <bool kScaled>
void softmax_rows(QueryTile& tile, int first, int count, const float* key_scales,
                  const float* value_scales, float* factors) {
  constexpr int kVectors = kTileKeys / kLanes;
  const Vf nothing = splat(-__builtin_inff());
  float old_largest[kLanes] = {}, old_sum[kLanes] = {};
  Vf tops[kLanes];
  for (int q = 0; q < count; ++q) {
    float* row = tile.probabilities + (first + q) * kTileKeys;
    const int32_t begin = tile.begin[first + q], end = tile.end[first + q];
    const bool sees_all = begin == 0 && end == kTileKeys;
    Vf top = nothing;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      Vf score = load(row + v * kLanes) * tile.scale;
      if (kScaled) score = score * load(key_scales + v * kLanes);
      if (!sees_all) {
        const Vi key = lane_index() + v * kLanes;
        score = select((key >= begin) & (key < end), score, nothing);
      }
      store(row + v * kLanes, score);
      top = MaxLanes()(top, score);
    }
    tops[q] = top;
    old_largest[q] = tile.largest[first + q];
    old_sum[q] = tile.sum[first + q];
  }
  for (int q = count; q < kLanes; ++q) tops[q] = tops[0];
  const Vf top = reduce_lanes(tops, MaxLanes());
  const Vf old = load(old_largest);
  const Vi is_higher = top > old;
  const Vf factor = select(is_higher, exp_of_nonpositive(old - top), splat(1));
  float largest[kLanes];
  store(largest, select(is_higher, top, old));

  Vf sums[kLanes];
  for (int q = 0; q < count; ++q) {
    float* row = tile.probabilities + (first + q) * kTileKeys;
    const Vf shift = splat(largest[q]);
    Vf sum{};
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      Vf p = exp_of_nonpositive(load(row + v * kLanes) - shift);
      sum = sum + p;
      if (kScaled) p = p * load(value_scales + v * kLanes);
      store(row + v * kLanes, p);
    }
    sums[q] = sum;
  }
  for (int q = count; q < kLanes; ++q) sums[q] = Vf{};
  float sum[kLanes], factor_of[kLanes];
  store(sum, load(old_sum) * factor + reduce_lanes(sums, AddLanes()));
  store(factor_of, factor);
  for (int q = 0; q < count; ++q) {
    tile.largest[first + q] = largest[q];
    tile.sum[first + q] = sum[q];
    factors[q] = factor_of[q];
  }
}

// The same for all queries of the tile that see any of its keys.
template <bool kScaled>
void softmax_all(QueryTile& tile, const float* key_scales, const float* value_scales,
                 float* factors) {
  int q = 0;
  while (q < tile.num_queries) {
    int count = 0;
    while (q + count < tile.num_queries && count < kLanes &&
           tile.begin[q + count] < tile.end[q + count]) {
      ++count;
    }
    if (count > 0) {
      softmax_rows<kScaled>(tile, q, count, key_scales, value_scales, factors + q);
      q += count;
    } else {
      ++q;
    }
  }
}

}  // namespace braid::BRAID_ISA

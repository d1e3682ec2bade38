#pragma once

// Products of weights stored as plain elements: rows are read as they lie, lanes run along the
// columns. An output is kLanes running sums over every kLanes-th column (of bfloat16 pairs: every
// pair of them), added up at the end in the order of reduce_add; so it depends on nothing but its
// row and its token.

#include "ops/linear/row_vectors.h"

namespace braid::BRAID_ISA {

// Element × float32.
template <typename Element>
struct FloatStep {
  using W = Element;
  using X = float;
  static constexpr int kColumns = kLanes;  // of one step
  using Stretch = FloatStep<float>;        // how a copied stretch of a row is used
  static const X* inputs(const LinearTask& task, int64_t token) {
    return task.x + token * task.x_stride;
  }
  [[gnu::always_inline]] static Vf load_weights(const W* w) { return load(w); }
  [[gnu::always_inline]] static Vf load_inputs(const X* x) { return load(x); }
  [[gnu::always_inline]] static Vf add(Vf acc, Vf w, Vf x) { return fma(w, x, acc); }
};

#if defined(BRAID_ISA_avx512)
// Bfloat16 × bfloat16. VDPBF16PS rounds to nearest even after each product and takes subnormal
// numbers as zero.
struct PairStep {
  using W = BFloat16;
  using X = BFloat16;
  static constexpr int kColumns = 2 * kLanes;
  using Stretch = PairStep;
  static const X* inputs(const LinearTask& task, int64_t token) {
    return task.packed + token * task.packed_stride;
  }
  [[gnu::always_inline]] static __m512i load_weights(const W* w) { return _mm512_loadu_si512(w); }
  [[gnu::always_inline]] static __m512i load_inputs(const X* x) { return _mm512_loadu_si512(x); }
  [[gnu::always_inline]] static Vf add(Vf acc, __m512i w, __m512i x) {
    return (Vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)w, (__m512bh)x);
  }
};
#endif

#if defined(BRAID_ISA_avx512)
inline constexpr int kMaxSums = 24;
#else
inline constexpr int kMaxSums = 12;
#endif

// acc[r][c] += w[r] · x[c] over one step.
template <typename Step, int kR, int kC>
BRAID_INLINE void dot_step(const typename Step::W* const (&w)[kR],
                           const typename Step::X* const (&x)[kC], int64_t column,
                           Vf (&acc)[kR][kC]) {
  decltype(Step::load_inputs(x[0])) inputs[kC];
  unroll<0, kC>(BRAID_UNROLLED(c) { inputs[c.value] = Step::load_inputs(x[c.value] + column); });
  unroll<0, kR>(BRAID_UNROLLED(r) {
    const auto weights = Step::load_weights(w[r.value] + column);
    unroll<0, kC>(BRAID_UNROLLED(c) {
      Vf& a = acc[r.value][c.value];
      a = Step::add(a, weights, inputs[c.value]);
    });
  });
}

// kR rows × kC tokens over `columns` columns, a multiple of a step's. acc: [kC][kStride], its first
// kR columns are added to. With kAhead, each row's cache lines that lie `ahead` elements further on
// are asked for, evenly: one row's in this step, another's in the next.
template <typename Step, int kR, int kC, int kStride, bool kAhead>
BRAID_INLINE void dot_steps(const typename Step::W* const (&w)[kR],
                            const typename Step::X* const (&x)[kC], int64_t columns, int64_t ahead,
                            Vf* acc) {
  Vf sums[kR][kC];
  unroll<0, kC>(BRAID_UNROLLED(c) {
    unroll<0, kR>(BRAID_UNROLLED(r) { sums[r.value][c.value] = acc[c.value * kStride + r.value]; });
  });
  constexpr int kStepBytes = Step::kColumns * static_cast<int>(sizeof(typename Step::W));
  constexpr int kLineSteps = kStepBytes < 64 ? 64 / kStepBytes : 1;
  int64_t column = 0;
  if constexpr (kAhead) {
    for (; column + kLineSteps * Step::kColumns <= columns; column += kLineSteps * Step::kColumns) {
      unroll<0, kLineSteps>(BRAID_UNROLLED(s) {
        unroll<0, kR>(BRAID_UNROLLED(r) {
          if constexpr (r.value % kLineSteps == s.value) {
            __builtin_prefetch(w[r.value] + column + ahead, 0, 2);
          }
        });
        dot_step<Step, kR, kC>(w, x, column + s.value * Step::kColumns, sums);
      });
    }
  }
  for (; column < columns; column += Step::kColumns) dot_step<Step, kR, kC>(w, x, column, sums);
  unroll<0, kC>(BRAID_UNROLLED(c) {
    unroll<0, kR>(BRAID_UNROLLED(r) { acc[c.value * kStride + r.value] = sums[r.value][c.value]; });
  });
}

// The last columns of a row, fewer than a step has: zeros fill the rest.
template <typename Step, int kR, int kC, int kStride>
[[gnu::noinline]] static void dot_tail(const typename Step::W* const (&w)[kR],
                                       const typename Step::X* const (&x)[kC], int64_t column,
                                       int64_t count, Vf* acc) {
  typename Step::W weights[kR][Step::kColumns] = {};
  typename Step::X inputs[kC][Step::kColumns] = {};
  const typename Step::W* w_tail[kR];
  const typename Step::X* x_tail[kC];
  for (int r = 0; r < kR; ++r) {
    for (int64_t i = 0; i < count; ++i) weights[r][i] = w[r][column + i];
    w_tail[r] = weights[r];
  }
  for (int c = 0; c < kC; ++c) {
    for (int64_t i = 0; i < count; ++i) inputs[c][i] = x[c][column + i];
    x_tail[c] = inputs[c];
  }
  dot_steps<Step, kR, kC, kStride, false>(w_tail, x_tail, Step::kColumns, 0, acc);
}

// The same over any number of columns.
template <typename Step, int kR, int kC, int kStride, bool kAhead>
[[gnu::noinline]] static void dot_part(const typename Step::W* first_row, int64_t row_stride,
                                       const typename Step::X* first_input, int64_t input_stride,
                                       int64_t columns, int64_t ahead, Vf* acc) {
  const typename Step::W* w[kR];
  const typename Step::X* x[kC];
  unroll<0, kR>(BRAID_UNROLLED(r) { w[r.value] = first_row + r.value * row_stride; });
  unroll<0, kC>(BRAID_UNROLLED(c) { x[c.value] = first_input + c.value * input_stride; });
  const int64_t rest = columns % Step::kColumns;
  dot_steps<Step, kR, kC, kStride, kAhead>(w, x, columns - rest, ahead, acc);
  if (rest > 0) dot_tail<Step, kR, kC, kStride>(w, x, columns - rest, rest, acc);
}

// kR rows × kC tokens. acc: [kC][kR], added to.
template <typename Step, int kR, int kC, bool kAhead>
BRAID_INLINE void dot_tile(const typename Step::W* first_row, int64_t row_stride,
                           const typename Step::X* first_input, int64_t input_stride,
                           int64_t columns, int64_t ahead, Vf* acc) {
  // As many sums as there are registers for, beside the inputs and a row's weights.
  constexpr int kPartRows = kR * kC > kMaxSums ? kR / 2 : kR;
  for (int r = 0; r < kR; r += kPartRows) {
    dot_part<Step, kPartRows, kC, kR, kAhead>(first_row + r * row_stride, row_stride, first_input,
                                              input_stride, columns, ahead, acc + r);
  }
}

// The lanes' sums of four vectors, each in the order of reduce_add.
BRAID_INLINE void reduce_four(const Vf* acc, float* out) {
#if defined(BRAID_ISA_avx512) || defined(BRAID_ISA_avx2)
  __m128 v[4];
  unroll<0, 4>(BRAID_UNROLLED(i) {
#if defined(BRAID_ISA_avx512)
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256((__m512)acc[i.value]),
                                      _mm512_extractf32x8_ps((__m512)acc[i.value], 1));
#else
    const __m256 half = (__m256)acc[i.value];
#endif
    v[i.value] = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  });
  _MM_TRANSPOSE4_PS(v[0], v[1], v[2], v[3]);
  _mm_storeu_ps(out, _mm_add_ps(_mm_add_ps(v[0], v[2]), _mm_add_ps(v[1], v[3])));
#else
  for (int i = 0; i < 4; ++i) out[i] = reduce_add(acc[i]);
#endif
}

// Elements as float32.
template <typename Element>
BRAID_INLINE void copy_stretch(const Element* w, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, load(w + i));
  if (i == count) return;
  Element padded[kLanes] = {};
  for (int64_t j = i; j < count; ++j) padded[j - i] = w[j];
  const Vf v = load(padded);
  for (int64_t j = i; j < count; ++j) out[j] = v[j - i];
}

BRAID_INLINE void copy_stretch(const BFloat16* w, int64_t count, BFloat16* out) {
  std::memcpy(out, w, static_cast<size_t>(count) * sizeof(*w));
}

inline constexpr int kMaxRangeTokens = 64;
// Up to so many tokens rows are used as they lie. For more they are copied first, a stretch of
// columns at a time: expanded, and away from each other's cache sets (rows are often a power of two
// apart).
inline constexpr int kFewTokens = 16;
inline constexpr int64_t kFewStretchBytes = 1024;
inline constexpr int64_t kStretchBytes = 2048;  // of a copied row
// Most tokens that share the loads of four rows; where those rows are expanded on the way, four
// tokens on two rows are better than three on four.
#if defined(BRAID_ISA_avx512)
inline constexpr int kGroupTokens = 6;
#else
inline constexpr int kGroupTokens = 3;
#endif
inline constexpr int kFewGroupTokens = 4;

// Calls body(first, Index<how many>) for groups of at most kMost, 3, 4 or 6, that cover `tokens`.
template <int kMost, typename Body>
BRAID_INLINE void for_token_groups(int64_t tokens, const Body& body) {
  int64_t t = 0;
  while (t < tokens) {
    const int64_t left = tokens - t;
    // Without a single one at the end, if it can be.
    if (kMost == 6 && left >= 6 && left != 7) {
      body(t, Index<6>{});
      t += 6;
    } else if (kMost >= 4 && left >= 4 && left != 5 && left != 6) {
      body(t, Index<4>{});
      t += 4;
    } else if (left >= 3 && left != 4) {
      body(t, Index<3>{});
      t += 3;
    } else if (left >= 2) {
      body(t, Index<2>{});
      t += 2;
    } else {
      body(t, Index<1>{});
      t += 1;
    }
  }
}

template <int kR>
BRAID_INLINE void store_sums(const LinearTask& task, int64_t row, int64_t token, const Vf* acc) {
  float* y = task.y + token * task.y_stride + row;
  if constexpr (kR % 4 == 0) {
    unroll<0, kR / 4>(BRAID_UNROLLED(i) { reduce_four(acc + 4 * i.value, y + 4 * i.value); });
  } else {
    for (int r = 0; r < kR; ++r) y[r] = reduce_add(acc[r]);
  }
}

// kR rows × one token: the rows stream by.
template <typename Step, int kR>
[[gnu::noinline]] static void dot_rows_of_one(const LinearTask& task, int64_t row,
                                              const LinearRange& range) {
  using W = typename Step::W;
  const int64_t row_stride = task.row_bytes / static_cast<int64_t>(sizeof(W));
  const W* w = reinterpret_cast<const W*>(task.weights + row * task.row_bytes);
  Vf acc[kR] = {};
  dot_tile<Step, kR, 1, true>(w, row_stride, Step::inputs(task, range.token_begin), 0, task.cols,
                              kR * row_stride, acc);
  store_sums<kR>(task, row, range.token_begin, acc);
}

// kTiles tiles of kR rows × the tokens of the range, which are few: their inputs stay in the first
// cache for a stretch of columns while the rows pass.
template <typename Step, int kR, int kTiles>
[[gnu::noinline]] static void dot_rows_directly(const LinearTask& task, int64_t row,
                                                const LinearRange& range) {
  using W = typename Step::W;
  constexpr int64_t kStretch = kFewStretchBytes / sizeof(W);
  const int64_t row_stride = task.row_bytes / static_cast<int64_t>(sizeof(W));
  const W* w = reinterpret_cast<const W*>(task.weights + row * task.row_bytes);
  const typename Step::X* x = Step::inputs(task, range.token_begin);
  const int64_t stride = Step::inputs(task, 1) - Step::inputs(task, 0);
  const int64_t tokens = range.token_end - range.token_begin;
  Vf acc[kTiles][kFewTokens * kR];
  for (Vf(&tile)[kFewTokens * kR] : acc) {
    for (int64_t i = 0; i < tokens * kR; ++i) tile[i] = Vf{};
  }
  for (int64_t first = 0; first < task.cols; first += kStretch) {
    const int64_t left = task.cols - first;
    const int64_t columns = left < kStretch ? left : kStretch;
    // What is worked on next: the same rows' next stretch, or the first one of the next rows.
    const int64_t ahead = left > kStretch ? kStretch : kR * kTiles * row_stride - first;
    for (int i = 0; i < kTiles; ++i) {
      const W* tile = w + i * kR * row_stride + first;
      const auto multiply = [&](int64_t t, auto count, auto asks) __attribute__((always_inline)) {
        dot_tile<Step, kR, count.value, asks.value>(tile, row_stride, x + t * stride + first,
                                                    stride, columns, ahead, acc[i] + t * kR);
      };
      for_token_groups<kFewGroupTokens>(
          tokens, [&](int64_t t, auto count) __attribute__((always_inline)) {
            if (t == 0) {
              multiply(t, count, Index<1>{});
            } else {
              multiply(t, count, Index<0>{});
            }
          });
    }
  }
  for (int i = 0; i < kTiles; ++i) {
    for (int64_t t = 0; t < tokens; ++t) {
      store_sums<kR>(task, row + i * kR, range.token_begin + t, acc[i] + t * kR);
    }
  }
}

// kTiles tiles of kR rows × the tokens of the range, which are many. The tiles share the reading of
// the inputs.
template <typename Step, int kR, int kTiles>
[[gnu::noinline]] static void dot_rows_in_stretches(const LinearTask& task, int64_t row,
                                                    const LinearRange& range) {
  using W = typename Step::W;
  using Use = typename Step::Stretch;
  constexpr int kRows = kR * kTiles;
  constexpr int64_t kStretchColumns = kStretchBytes / sizeof(typename Use::W);
  const int64_t row_stride = task.row_bytes / static_cast<int64_t>(sizeof(W));
  const W* w = reinterpret_cast<const W*>(task.weights + row * task.row_bytes);
  Prefetcher prefetch = prefetch_rows(task, row + kRows, kRows, range.row_end);
  const typename Step::X* x = Step::inputs(task, range.token_begin);
  const int64_t stride = Step::inputs(task, 1) - Step::inputs(task, 0);
  const int64_t tokens = range.token_end - range.token_begin;
  Vf acc[kTiles][kMaxRangeTokens * kR];
  for (Vf(&tile)[kMaxRangeTokens * kR] : acc) {
    for (int64_t i = 0; i < tokens * kR; ++i) tile[i] = Vf{};
  }
  alignas(64) typename Use::W stretch[kRows * kStretchColumns];
  for (int64_t first = 0; first < task.cols; first += kStretchColumns) {
    const int64_t left = task.cols - first;
    const int64_t columns = left < kStretchColumns ? left : kStretchColumns;
    prefetch.advance(kRows * columns * static_cast<int64_t>(sizeof(W)));
    for (int r = 0; r < kRows; ++r) {
      copy_stretch(w + r * row_stride + first, columns, stretch + r * kStretchColumns);
    }
    for_token_groups<kGroupTokens>(
        tokens, [&](int64_t t, auto count) __attribute__((always_inline)) {
          for (int i = 0; i < kTiles; ++i) {
            dot_tile<Use, kR, count.value, false>(stretch + i * kR * kStretchColumns,
                                                  kStretchColumns, x + t * stride + first, stride,
                                                  columns, 0, acc[i] + t * kR);
          }
        });
  }
  for (int i = 0; i < kTiles; ++i) {
    for (int64_t t = 0; t < tokens; ++t) {
      store_sums<kR>(task, row + i * kR, range.token_begin + t, acc[i] + t * kR);
    }
  }
}

template <typename Step>
static void dot_kernel(const LinearTask& task, const LinearRange& range) {
  const int64_t tokens = range.token_end - range.token_begin;
  int64_t row = range.row_begin;
  if (tokens == 1) {
    for (; row + 8 <= range.row_end; row += 8) dot_rows_of_one<Step, 8>(task, row, range);
    for (; row + 4 <= range.row_end; row += 4) dot_rows_of_one<Step, 4>(task, row, range);
    for (; row < range.row_end; ++row) dot_rows_of_one<Step, 1>(task, row, range);
  } else if (tokens <= kFewTokens) {
    for (; row + 32 <= range.row_end; row += 32) dot_rows_directly<Step, 4, 8>(task, row, range);
    for (; row + 4 <= range.row_end; row += 4) dot_rows_directly<Step, 4, 1>(task, row, range);
    for (; row < range.row_end; ++row) dot_rows_directly<Step, 1, 1>(task, row, range);
  } else {
    for (; row + 8 <= range.row_end; row += 8) {
      dot_rows_in_stretches<Step, 4, 2>(task, row, range);
    }
    for (; row + 4 <= range.row_end; row += 4) dot_rows_in_stretches<Step, 4, 1>(task, row, range);
    for (; row < range.row_end; ++row) dot_rows_in_stretches<Step, 1, 1>(task, row, range);
  }
}

}  // namespace braid::BRAID_ISA

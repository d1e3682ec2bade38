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

struct NothingAhead {
  [[gnu::always_inline]] void advance(int64_t) {}
};

// Asks for stretches of kFewStretchBytes of neighbouring rows, evenly over the steps in which other
// rows are worked on: asking for all at once would keep the loads of those steps waiting.
inline constexpr int64_t kFewStretchBytes = 1024;
struct StretchAhead {
  const uint8_t* line;  // the next to ask for
  int64_t row_bytes;
  int lines;  // left
  int steps;  // over which they are spread
  int credit;

  StretchAhead(const void* first, int64_t row_bytes, int rows, int64_t num_steps)
      : line(static_cast<const uint8_t*>(first)),
        row_bytes(row_bytes),
        lines(rows * static_cast<int>(kFewStretchBytes / 64)),
        steps(static_cast<int>(num_steps)),
        credit(0),
        per_step(lines) {}

  [[gnu::always_inline]] void advance(int64_t) {
    credit += per_step;
    while (credit >= steps) {
      credit -= steps;
      __builtin_prefetch(line, 0, 2);
      line += --lines % static_cast<int>(kFewStretchBytes / 64) == 0
                  ? row_bytes - kFewStretchBytes + 64
                  : 64;
    }
  }

 private:
  int per_step;
};

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

// kR rows × kC tokens over `columns` columns, a multiple of a step's. acc: [kC][kR], added to.
template <typename Step, int kR, int kC, typename Ahead>
BRAID_INLINE void dot_steps(const typename Step::W* const (&w)[kR],
                            const typename Step::X* const (&x)[kC], int64_t columns, Ahead& ahead,
                            Vf* acc) {
  Vf sums[kR][kC];
  unroll<0, kC>(BRAID_UNROLLED(c) {
    unroll<0, kR>(BRAID_UNROLLED(r) { sums[r.value][c.value] = acc[c.value * kR + r.value]; });
  });
  constexpr int64_t kStepBytes = kR * Step::kColumns * sizeof(typename Step::W);
  for (int64_t column = 0; column < columns; column += Step::kColumns) {
    ahead.advance(kStepBytes);
    dot_step<Step, kR, kC>(w, x, column, sums);
  }
  unroll<0, kC>(BRAID_UNROLLED(c) {
    unroll<0, kR>(BRAID_UNROLLED(r) { acc[c.value * kR + r.value] = sums[r.value][c.value]; });
  });
}

// The last columns of a row, fewer than a step has: zeros fill the rest.
template <typename Step, int kR, int kC>
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
  NothingAhead none;
  dot_steps<Step, kR, kC>(w_tail, x_tail, Step::kColumns, none, acc);
}

// The same over any number of columns.
template <typename Step, int kR, int kC, typename Ahead>
[[gnu::noinline]] static void dot_tile(const typename Step::W* first_row, int64_t row_stride,
                                       const typename Step::X* first_input, int64_t input_stride,
                                       int64_t columns, Ahead& ahead, Vf* acc) {
  const typename Step::W* w[kR];
  const typename Step::X* x[kC];
  unroll<0, kR>(BRAID_UNROLLED(r) { w[r.value] = first_row + r.value * row_stride; });
  unroll<0, kC>(BRAID_UNROLLED(c) { x[c.value] = first_input + c.value * input_stride; });
  const int64_t rest = columns % Step::kColumns;
  dot_steps<Step, kR, kC>(w, x, columns - rest, ahead, acc);
  if (rest > 0) dot_tail<Step, kR, kC>(w, x, columns - rest, rest, acc);
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
inline constexpr int64_t kStretchColumns = 512;
#if defined(BRAID_ISA_avx512)
inline constexpr int kGroupTokens = 4;
#else
inline constexpr int kGroupTokens = 3;
#endif

// Calls body(first, Index<how many>) for groups of at most kGroupTokens that cover `tokens`.
template <typename Body>
BRAID_INLINE void for_even_groups(int64_t tokens, const Body& body) {
  int64_t t = 0;
  while (t < tokens) {
    const int64_t left = tokens - t;
    // Rather two and two than three and one.
    if (left >= kGroupTokens && left != kGroupTokens + 1) {
      body(t, Index<kGroupTokens>{});
      t += kGroupTokens;
    } else if (kGroupTokens == 4 && left >= 3) {
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
  Prefetcher prefetch = prefetch_rows(task, row + kR, kR, range.row_end);
  Vf acc[kR] = {};
  dot_tile<Step, kR, 1>(w, row_stride, Step::inputs(task, range.token_begin), 0, task.cols,
                        prefetch, acc);
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
  NothingAhead none;
  Vf acc[kTiles][kFewTokens * kR];
  for (Vf(&tile)[kFewTokens * kR] : acc) {
    for (int64_t i = 0; i < tokens * kR; ++i) tile[i] = Vf{};
  }
  for (int64_t first = 0; first < task.cols; first += kStretch) {
    const int64_t left = task.cols - first;
    const int64_t columns = left < kStretch ? left : kStretch;
    const auto multiply = [&](const W* tile, int i, auto& ahead) __attribute__((always_inline)) {
      for_even_groups(
          tokens, [&](int64_t t, auto count) __attribute__((always_inline)) {
            dot_tile<Step, kR, count.value>(tile, row_stride, x + t * stride + first, stride,
                                            columns, ahead, acc[i] + t * kR);
          });
    };
    for (int i = 0; i < kTiles; ++i) {
      const W* tile = w + i * kR * row_stride + first;
      const int64_t groups = (tokens + kGroupTokens - 1) / kGroupTokens;
      if (left >= 2 * kStretch) {
        // The next stretch of the same rows, in time.
        StretchAhead ahead(tile + kStretch, task.row_bytes, kR,
                           groups * (kStretch / Step::kColumns));
        multiply(tile, i, ahead);
      } else {
        multiply(tile, i, none);
      }
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
  const int64_t row_stride = task.row_bytes / static_cast<int64_t>(sizeof(W));
  const W* w = reinterpret_cast<const W*>(task.weights + row * task.row_bytes);
  Prefetcher prefetch = prefetch_rows(task, row + kRows, kRows, range.row_end);
  NothingAhead none;
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
    for_even_groups(
        tokens, [&](int64_t t, auto count) __attribute__((always_inline)) {
          for (int i = 0; i < kTiles; ++i) {
            dot_tile<Use, kR, count.value>(stretch + i * kR * kStretchColumns, kStretchColumns,
                                           x + t * stride + first, stride, columns, none,
                                           acc[i] + t * kR);
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

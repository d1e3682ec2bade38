#pragma once

// Products of weights with float32 inputs, or of bfloat16 pairs where the instruction set has them.
//
// A loader expands kRunColumns columns of kLanes rows:
//
//   struct Loader {
//     using Step = FloatStep;  // or PairStep
//     static constexpr int kUnitColumns;  // columns expanded at once, a multiple of kRunColumns
//     static constexpr int kUnitBytes;
//     static constexpr bool kDirect;      // worth a path of its own for one token
//     static void load(const RowGroup& rows, int64_t offset, Step::W* out);  // kUnitColumns of
//     them
//   };
//
// An output is the sum of the sums of runs of kRunColumns neighbouring columns, each added up in
// order.

#include "ops/linear/int8_tile.h"

namespace braid::BRAID_ISA {

inline constexpr int kRunColumns = 16;
inline constexpr int kPanelColumns = 256;

// One column a step.
struct FloatStep {
  using W = Vf;
  using X = float;
  static constexpr int kColumns = 1;
  static const X* inputs(const LinearTask& task, int64_t token) {
    return task.x + token * task.x_stride;
  }
  [[gnu::always_inline]] static Vf add(Vf acc, W w, const X* x) { return fma(w, splat(*x), acc); }
};

#if defined(BRAID_ISA_avx512)
// Two neighbouring columns a step, both bfloat16. VDPBF16PS rounds to nearest even after each
// product and takes subnormal numbers as zero.
struct PairStep {
  using W = Vu;
  using X = uint32_t;
  static constexpr int kColumns = 2;
  static const X* inputs(const LinearTask& task, int64_t token) {
    return reinterpret_cast<const X*>(task.packed + token * task.packed_stride);
  }
  [[gnu::always_inline]] static Vf add(Vf acc, W w, const X* x) {
    return (Vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)w, (__m512bh)splat_bytes(x));
  }
};
#endif

// acc[r][c] += one whole run of w[r] · x[c]. w: [kR][stride].
template <typename Step, int kR, int kC>
BRAID_INLINE void multiply_run(const typename Step::W* w, int64_t stride,
                               const typename Step::X* const (&x)[kC], Vf (&acc)[kR][kC]) {
  Vf run[kR][kC] = {};
  unroll<0, kRunColumns / Step::kColumns>(BRAID_UNROLLED(i) {
    unroll<0, kC>(BRAID_UNROLLED(c) {
      unroll<0, kR>(BRAID_UNROLLED(r) {
        Vf& a = run[r.value][c.value];
        a = Step::add(a, w[r.value * stride + i.value], x[c.value] + i.value);
      });
    });
  });
  unroll<0, kC>(BRAID_UNROLLED(c) {
    unroll<0, kR>(BRAID_UNROLLED(r) { acc[r.value][c.value] += run[r.value][c.value]; });
  });
}
// The same for the first `steps` steps of a run, at the end of a row.
template <typename Step, int kR, int kC>
BRAID_INLINE void multiply_tail(const typename Step::W* w, int64_t stride, int64_t steps,
                                const typename Step::X* const (&x)[kC], Vf (&acc)[kR][kC]) {
  Vf run[kR][kC] = {};
  for (int64_t s = 0; s < steps; ++s) {
    unroll<0, kC>(BRAID_UNROLLED(c) {
      unroll<0, kR>(BRAID_UNROLLED(r) {
        Vf& a = run[r.value][c.value];
        a = Step::add(a, w[r.value * stride + s], x[c.value] + s);
      });
    });
  }
  unroll<0, kC>(BRAID_UNROLLED(c) {
    unroll<0, kR>(BRAID_UNROLLED(r) { acc[r.value][c.value] += run[r.value][c.value]; });
  });
}

// Expands the unit at `offset`, of which the row still has `bytes`, and reads no further than that.
template <typename Loader>
[[gnu::noinline]] static void load_tail(const RowGroup& rows, int64_t offset, int64_t bytes,
                                        typename Loader::Step::W* out) {
  uint8_t padded[kLanes][Loader::kUnitBytes] = {};
  RowGroup copies;
  for (int r = 0; r < kLanes; ++r) {
    for (int64_t i = 0; i < bytes; ++i) padded[r][i] = rows.row[r][offset + i];
    copies.row[r] = padded[r];
  }
  Loader::load(copies, 0, out);
}

// kC tokens × kTileGroups row groups over a panel [group][kPanelColumns / Step::kColumns]; adds to
// acc.
template <typename Step, int kC>
[[gnu::noinline]] static void float_panel(const LinearTask& task, const typename Step::W* panel,
                                          int64_t first_step, int64_t steps, int64_t token,
                                          Vf (*acc)[kTileGroups]) {
  constexpr int kStride = kPanelColumns / Step::kColumns;
  constexpr int kRunSteps = kRunColumns / Step::kColumns;
  const typename Step::X* x[kC];
  Vf sums[kTileGroups][kC];
  unroll<0, kC>(BRAID_UNROLLED(c) {
    x[c.value] = Step::inputs(task, token + c.value) + first_step;
    unroll<0, kTileGroups>(BRAID_UNROLLED(r) { sums[r.value][c.value] = acc[c.value][r.value]; });
  });
  for (; steps >= kRunSteps; steps -= kRunSteps, panel += kRunSteps) {
    multiply_run<Step, kTileGroups, kC>(panel, kStride, x, sums);
    unroll<0, kC>(BRAID_UNROLLED(c) { x[c.value] += kRunSteps; });
  }
  if (steps > 0) multiply_tail<Step, kTileGroups, kC>(panel, kStride, steps, x, sums);
  unroll<0, kC>(BRAID_UNROLLED(c) {
    unroll<0, kTileGroups>(BRAID_UNROLLED(r) { acc[c.value][r.value] = sums[r.value][c.value]; });
  });
}

// One row group × one token, expanding on the way.
template <typename Loader>
[[gnu::noinline]] static void float_direct(const LinearTask& task, int64_t row, int64_t row_end,
                                           int64_t token) {
  using Step = typename Loader::Step;
  constexpr int kUnitSteps = Loader::kUnitColumns / Step::kColumns;
  constexpr int kRunSteps = kRunColumns / Step::kColumns;
  const RowGroup rows = row_group(task.weights, task.row_bytes, row, task.rows);
  Prefetcher prefetch = prefetch_rows(task, row + kLanes, kLanes, row_end);
  const typename Step::X* x[1] = {Step::inputs(task, token)};
  Vf acc[1][1] = {};
  int64_t offset = 0;
  typename Step::W w[kUnitSteps];
  for (; offset + Loader::kUnitBytes <= task.row_bytes; offset += Loader::kUnitBytes) {
    prefetch.advance(kLanes * Loader::kUnitBytes);
    Loader::load(rows, offset, w);
    unroll<0, kUnitSteps / kRunSteps>(BRAID_UNROLLED(run) {
      multiply_run<Step, 1, 1>(w + run.value * kRunSteps, 0, x, acc);
      x[0] += kRunSteps;
    });
  }
  if (offset < task.row_bytes) {
    load_tail<Loader>(rows, offset, task.row_bytes - offset, w);
    const int64_t columns = task.cols % Loader::kUnitColumns;
    int64_t steps = (columns + Step::kColumns - 1) / Step::kColumns;
    const typename Step::W* tail = w;
    for (; steps >= kRunSteps; steps -= kRunSteps, tail += kRunSteps, x[0] += kRunSteps) {
      multiply_run<Step, 1, 1>(tail, 0, x, acc);
    }
    if (steps > 0) multiply_tail<Step, 1, 1>(tail, 0, steps, x, acc);
  }
  store_lanes(task.y + token * task.y_stride + row, acc[0][0], row_end - row);
}

// Columns [first, first + columns) of a row group; short of whole units only at the end of a row.
template <typename Loader>
[[gnu::noinline]] static void load_panel(const LinearTask& task, const RowGroup& rows,
                                         int64_t first, int64_t columns, Prefetcher& prefetch,
                                         typename Loader::Step::W* panel) {
  constexpr int kUnitSteps = Loader::kUnitColumns / Loader::Step::kColumns;
  int64_t offset = first / Loader::kUnitColumns * Loader::kUnitBytes;
  for (; columns >= Loader::kUnitColumns; columns -= Loader::kUnitColumns) {
    prefetch.advance(kLanes * Loader::kUnitBytes);
    Loader::load(rows, offset, panel);
    offset += Loader::kUnitBytes;
    panel += kUnitSteps;
  }
  if (columns > 0) load_tail<Loader>(rows, offset, task.row_bytes - offset, panel);
}

// kTileGroups row groups × the tokens of the range.
template <typename Loader>
[[gnu::noinline]] static void float_tile(const LinearTask& task, int64_t row,
                                         const LinearRange& range) {
  using Step = typename Loader::Step;
  constexpr int kPanelSteps = kPanelColumns / Step::kColumns;
  constexpr int kTileRows = kTileGroups * kLanes;
  typename Step::W panel[kTileGroups * kPanelSteps];
  TileSums acc;
  for (int64_t t = 0; t < range.token_end - range.token_begin; ++t) {
    for (Vf& sum : acc[t]) sum = Vf{};
  }
  RowGroup rows[kTileGroups];
  for (int g = 0; g < kTileGroups; ++g) {
    rows[g] = row_group(task.weights, task.row_bytes, row + g * kLanes, task.rows);
  }
  Prefetcher prefetch = prefetch_rows(task, row + kTileRows, kTileRows, range.row_end);
  for (int64_t first = 0; first < task.cols; first += kPanelColumns) {
    const int64_t left = task.cols - first;
    const int64_t columns = left < kPanelColumns ? left : kPanelColumns;
    for (int g = 0; g < kTileGroups; ++g) {
      load_panel<Loader>(task, rows[g], first, columns, prefetch, panel + g * kPanelSteps);
    }
    const int64_t steps = (columns + Step::kColumns - 1) / Step::kColumns;
    for_token_groups(
        range, [&](int64_t t, auto tokens) __attribute__((always_inline)) {
          float_panel<Step, tokens.value>(task, panel, first / Step::kColumns, steps,
                                          range.token_begin + t, acc + t);
        });
  }
  store_tile(task, row, range.row_end, range, acc);
}

template <typename Loader>
static void float_kernel(const LinearTask& task, const LinearRange& range) {
  if constexpr (Loader::kDirect) {
    if (range.token_end - range.token_begin == 1) {
      for (int64_t row = range.row_begin; row < range.row_end; row += kLanes) {
        float_direct<Loader>(task, row, range.row_end, range.token_begin);
      }
      return;
    }
  }
  for (int64_t row = range.row_begin; row < range.row_end; row += kTileGroups * kLanes) {
    float_tile<Loader>(task, row, range);
  }
}

// The weights of a sub-block.
template <typename Kind>
[[gnu::noinline]] static void expand(const CodeBlock<Kind>& block, Vf* out) {
  unroll<0, 32>(BRAID_UNROLLED(column) {
    constexpr int k = column.value, g = k * Kind::kGroups / 32;
    Vf w;
    if constexpr (Kind::kSigned) {
      w = signed_byte<k % 4>(block.codes[k / 4]);
    } else {
      w = unsigned_byte<k % 4>(block.codes[k / 4]);
    }
    if constexpr (Kind::kOffset != 0) w -= splat(static_cast<float>(Kind::kOffset));
    // Small integers and float16 scales: the product is exact, so an FMA rounds as the two
    // operations of dequantize() do.
    out[k] = Kind::kMin ? fma(w, block.scale[g], block.min[g]) : w * block.scale[g];
  });
}

// The loader of a block format: the codes of its decoder, expanded.
template <typename Decoder>
struct BlockLoader {
  using Step = FloatStep;
  using Kind = typename Decoder::Kind;
  static constexpr int kUnitColumns = 32 * Decoder::kSubBlocks;
  static constexpr int kUnitBytes = Decoder::kBlockBytes;
  static constexpr bool kDirect = false;

  [[gnu::noinline]] static void load(const RowGroup& rows, int64_t offset, Vf* out) {
    CodeBlock<Kind> blocks[Decoder::kSubBlocks];
    Decoder::decode(rows, offset, blocks);
    for (int s = 0; s < Decoder::kSubBlocks; ++s, out += 32) expand(blocks[s], out);
  }
};

}  // namespace braid::BRAID_ISA

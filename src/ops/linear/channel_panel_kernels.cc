// Products of w8c weights in panels; see channel_kernels.cc.

#include "ops/linear/channel_math.h"
#include "ops/linear/float_tile.h"
#include "quant/panels.h"

namespace braid::BRAID_ISA {
namespace {

constexpr int kHeaderBytes = kPanelRows * static_cast<int>(sizeof(RowHeaderW8C));
constexpr int kScaleBytes = 4 * kPanelRows;
constexpr int kPanelVectors = kPanelRows / kLanes;

// For products with float32 inputs.
struct ChannelPanelDecoder {
  using Kind = SignedKind;
  struct Rows {
    const uint8_t* words;
    Vf scale;
    [[gnu::always_inline]] static Rows at(const LinearTask& task, int64_t first) {
      const int64_t last = (task.rows - 1) / kPanelRows, i = first / kPanelRows;
      const uint8_t* panel = task.weights + (i < last ? i : last) * kPanelRows * task.row_bytes;
      const int64_t lane = first % kPanelRows;
      return {panel + kHeaderBytes + 4 * lane, load(reinterpret_cast<const float*>(panel) + lane)};
    }
  };
  static constexpr int kBlockBytes = kW8CBlock, kSubBlocks = 1;
  [[gnu::always_inline]] static void decode(const Rows& rows, int64_t offset,
                                            CodeBlock<Kind>* out) {
    unroll<0, 8>(BRAID_UNROLLED(i) {
      Vu v;
      std::memcpy(&v, rows.words + kPanelRows * (offset + 4 * i.value), sizeof(v));
      out->codes[i.value] = v ^ splat_u32(kSignedBias);
    });
    out->scale[0] = rows.scale;
  }
};

// Four columns of a panel's rows, kStepVectors of products' operands; inputs are repeated to meet
// every row.
#if defined(BRAID_ISA_avx512)
constexpr int kStepVectors = 1;  // a lane: the four columns of a row
constexpr int kLanesPerRow = 1;
BRAID_INLINE DotVector repeat_inputs(const TokenCode* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  return (DotVector)splat_i32(x);
}
#else
constexpr int kStepVectors = 2 * kPanelVectors;  // two lanes: the two halves of a row's columns
constexpr int kLanesPerRow = 2;
BRAID_INLINE DotVector repeat_inputs(const TokenCode* p) {
  typedef int64_t Longs __attribute__((vector_size(4 * kLanes)));
  int64_t x;
  std::memcpy(&x, p, 8);
  return (DotVector)(x - Longs{});
}
#endif
constexpr int kStepBytes = 4 * kPanelRows;
constexpr int kVectorBytes = kStepBytes / kStepVectors;

// So many columns of a tile's weights stay in the first cache while the tokens pass.
constexpr int64_t kStretchColumns = 512;
// Operands in registers: sums of kP panels × kC tokens, and inputs or weights.
#if defined(BRAID_ISA_avx512)
constexpr int kTilePanels = 4, kTileTokens = 6;
#else
constexpr int kTilePanels = 1, kTileTokens = 2;
#endif

typedef Vi PanelSums[kTilePanels * kStepVectors];

// How far ahead of its work a pass over fresh weights asks for them.
constexpr int64_t kAheadBytes = 2304;

// Columns [first, first + count) of kP panels × kC tokens; adds to sums[token]. What lies `ahead`
// bytes further on is asked for.
template <int kP, int kC>
[[gnu::noinline]] static void channel_part(const LinearTask& task, const uint8_t* panel,
                                           int64_t first, int64_t count, int64_t token,
                                           int64_t ahead, PanelSums* sums) {
  constexpr int kR = kP * kStepVectors;
  const int64_t panel_bytes = kPanelRows * task.row_bytes;
  const uint8_t* const weights = panel + kHeaderBytes + kPanelRows * first;
  const TokenCode* x[kC];
  Vi acc[kR][kC];
  unroll<0, kC>(BRAID_UNROLLED(c) {
    x[c.value] = token_codes(task, token + c.value) + first;
    unroll<0, kR>(BRAID_UNROLLED(r) { acc[r.value][c.value] = sums[c.value][r.value]; });
  });
  for (int64_t column = 0; column < count; column += 4) {
    const uint8_t* const at = weights + kPanelRows * column;
    unroll<0, kP>(
        BRAID_UNROLLED(p) { __builtin_prefetch(at + p.value * panel_bytes + ahead, 0, 2); });
    DotVector w[kR];
    unroll<0, kR>(BRAID_UNROLLED(r) {
      constexpr int p = r.value / kStepVectors, v = r.value % kStepVectors;
      w[r.value] = load_weights(at + p * panel_bytes + v * kVectorBytes);
    });
    unroll<0, kC>(BRAID_UNROLLED(c) {
      const DotVector input = repeat_inputs(x[c.value] + column);
      unroll<0, kR>(BRAID_UNROLLED(r) {
        Vi& sum = acc[r.value][c.value];
        sum = multiply_add(sum, input, w[r.value]);
        pin(sum);
      });
    });
  }
  unroll<0, kC>(BRAID_UNROLLED(c) {
    unroll<0, kR>(BRAID_UNROLLED(r) { sums[c.value][r.value] = acc[r.value][c.value]; });
  });
}

// Writes what the sums of one panel and token come to.
[[gnu::noinline]] static void store_sums(const LinearTask& task, const uint8_t* panel, int64_t row,
                                         int64_t rows, int64_t token, const Vi* sums) {
  int32_t totals[kPanelRows];
  constexpr int kRowsPerVector = kLanes / kLanesPerRow;
  for (int i = 0; i < kPanelRows; ++i) {
    const Vi v = sums[i / kRowsPerVector];
    const int lane = i % kRowsPerVector * kLanesPerRow;
    totals[i] = kLanesPerRow == 1 ? v[lane] : v[lane] + v[lane + kLanesPerRow - 1];
  }
  float* y = task.y + token * task.y_stride + row;
  for (int v = 0; v < kPanelVectors; ++v) {
    Vi total, code_sum;
    std::memcpy(&total, totals + v * kLanes, sizeof(total));
    std::memcpy(&code_sum, panel + kScaleBytes + 4 * v * kLanes, sizeof(code_sum));
    const Vf scale = load(reinterpret_cast<const float*>(panel) + v * kLanes);
    const Vf value =
        to_vf(total - code_sum * kTokenBias) * (splat(task.token_scales[token]) * scale);
    const int64_t lanes = rows - v * kLanes;
    if (lanes > 0) store_lanes(y + v * kLanes, value, lanes);
  }
}

// kP panels × the tokens of the range.
template <int kP>
[[gnu::noinline]] static void channel_tile(const LinearTask& task, int64_t row,
                                           const LinearRange& range) {
  const uint8_t* panel = task.weights + row * task.row_bytes;
  const int64_t tokens = range.token_end - range.token_begin;
  PanelSums sums[kMaxTokens];
  for (int64_t t = 0; t < tokens; ++t) {
    for (Vi& sum : sums[t]) sum = Vi{};
  }
  // Little is kept between stretches; few tokens read all columns at once.
  const int64_t stretch = tokens > kTileTokens ? kStretchColumns : task.cols;
  for (int64_t first = 0; first < task.cols; first += stretch) {
    const int64_t left = task.cols - first;
    const int64_t count = left < stretch ? left : stretch;
    int64_t t = 0;
    for (; t + kTileTokens <= tokens; t += kTileTokens) {
      channel_part<kP, kTileTokens>(task, panel, first, count, range.token_begin + t,
                                    t == 0 ? kAheadBytes : 0, sums + t);
    }
    if constexpr (kTileTokens > 4) {
      if (t + 4 <= tokens) {
        channel_part<kP, 4>(task, panel, first, count, range.token_begin + t,
                            t == 0 ? kAheadBytes : 0, sums + t);
        t += 4;
      }
    }
    if constexpr (kTileTokens > 2) {
      if (t + 2 <= tokens) {
        channel_part<kP, 2>(task, panel, first, count, range.token_begin + t,
                            t == 0 ? kAheadBytes : 0, sums + t);
        t += 2;
      }
    }
    if (t < tokens) {
      channel_part<kP, 1>(task, panel, first, count, range.token_begin + t,
                          t == 0 ? kAheadBytes : 0, sums + t);
    }
  }
  for (int p = 0; p < kP; ++p, row += kPanelRows, panel += kPanelRows * task.row_bytes) {
    for (int64_t t = 0; t < tokens; ++t) {
      store_sums(task, panel, row, range.row_end - row, range.token_begin + t,
                 sums[t] + p * kStepVectors);
    }
  }
}

void channel_panel_kernel(const LinearTask& task, const LinearRange& range) {
  int64_t row = range.row_begin;
  if constexpr (kTilePanels > 1) {
    constexpr int64_t kTileRows = kTilePanels * kPanelRows;
    for (; row + kTileRows <= range.row_end; row += kTileRows) {
      channel_tile<kTilePanels>(task, row, range);
    }
  }
  for (; row < range.row_end; row += kPanelRows) channel_tile<1>(task, row, range);
}

constexpr LinearKernels make_table() {
  LinearKernels table{};
  table.f32[static_cast<int>(FormatId::kW8C)] = float_kernel<ChannelPanelDecoder>;
  table.int8[static_cast<int>(FormatId::kW8C)] = channel_panel_kernel;
  return table;
}

}  // namespace

const LinearKernels kChannelPanelKernels = make_table();

}  // namespace braid::BRAID_ISA

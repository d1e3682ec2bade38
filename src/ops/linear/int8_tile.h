#pragma once

// Products of block-quantised weights with int8 inputs.
//
// A decoder turns one storage block of kLanes rows into sub-blocks of 32 codes and their scales:
//
//   struct Decoder {
//     using Kind = CodeKind<…>;
//     using Rows = RowGroup;  // or what else finds kLanes rows of a matrix; see RowGroup::at
//     static constexpr int kBlockBytes, kSubBlocks;
//     static void decode(const Rows& rows, int64_t offset, CodeBlock<Kind>* out);
//   };
//
// With one token a block goes from the decoder's registers straight into the products; with more,
// tiles of rows are decoded into a panel that stays in cache while the tokens pass.

#include "ops/linear/linear_kernels.h"
#include "ops/linear/row_vectors.h"

namespace braid::BRAID_ISA {

// How codes become weights: w = scale · (code − offset) + min, with one scale (and min) per 32 or
// two per 32. Codes are bytes up to max_code, or signed bytes.
template <bool is_signed, int max_code, int groups, bool has_min, int offset_log2>
struct CodeKind {
  static constexpr bool kSigned = is_signed;
  static constexpr int kMaxCode = max_code;
  static constexpr int kGroups = groups;
  static constexpr bool kMin = has_min;
  static constexpr int kOffsetLog2 = offset_log2;
  static constexpr int kOffset = offset_log2 > 0 ? 1 << offset_log2 : 0;
};

// VPDPBUSD multiplies unsigned by signed bytes: there, signed codes are kept with 128 added.
#if defined(BRAID_ISA_avx512)
using SignedKind = CodeKind<false, 255, 1, false, 7>;
inline constexpr uint32_t kSignedBias = 0x80808080;
#else
using SignedKind = CodeKind<true, 127, 1, false, 0>;
inline constexpr uint32_t kSignedBias = 0;
#endif

// 32 codes of kLanes rows: byte j of lane r of codes[i] belongs to column 4 i + j of row r.
template <typename Kind>
struct CodeBlock {
  Vu codes[8];
  Vf scale[Kind::kGroups];
  Vf min[Kind::kMin ? Kind::kGroups : 1];  // unused without kMin
};

#if defined(BRAID_ISA_avx2)
// Sums of pairs of products fit 16 bits; so do a few of them added up: as many as this, or all.
template <typename Kind, int kSteps>
constexpr int steps_per_sum() {
  constexpr int kPairLimit = 2 * 127 * Kind::kMaxCode;
  constexpr int kFit = Kind::kSigned ? 1 : 32767 / kPairLimit;
  constexpr int kSteps2 = kFit >= 8 ? 8 : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  return kSteps2 < kSteps ? kSteps2 : kSteps;
}

template <typename Kind>
BRAID_INLINE Vs multiply_bytes(Vu codes, Vu x) {
  if constexpr (Kind::kSigned) {
    return (Vs)_mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)codes),
                                    _mm256_sign_epi8((__m256i)x, (__m256i)codes));
  } else {
    return (Vs)_mm256_maddubs_epi16((__m256i)codes, (__m256i)x);
  }
}
BRAID_INLINE Vi add_pairs(Vs v) { return (Vi)_mm256_madd_epi16((__m256i)v, _mm256_set1_epi16(1)); }
#elif !defined(BRAID_ISA_avx512)
BRAID_INLINE Vi multiply_pairs(Vs a, Vs b) {
#if defined(__SSE2__)
  return (Vi)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  const Vi a_low = (Vi)a << 16 >> 16, a_high = (Vi)a >> 16;
  const Vi b_low = (Vi)b << 16 >> 16, b_high = (Vi)b >> 16;
  return a_low * b_low + a_high * b_high;
#endif
}
#endif

// sum[r][c] = the exact sum of products over `kSteps` words of w[r] from `first` and those of x[c].
// `codes(r, word)` gives the words of w[r].
template <typename Kind, int kSteps, int kR, int kC, typename Codes>
BRAID_INLINE void dot_codes(const Codes& codes, int first, const int8_t* const (&x)[kC],
                            Vi (&sum)[kR][kC]) {
#if defined(BRAID_ISA_avx2)
  constexpr int kRun = steps_per_sum<Kind, kSteps>();
  BRAID_LOOP(int run = 0; run < kSteps / kRun; ++run) {
    Vs partial[kR][kC];
    BRAID_LOOP(int step = 0; step < kRun; ++step) {
      const int s = first + run * kRun + step;
      Vu w[kR];
      BRAID_LOOP(int r = 0; r < kR; ++r) w[r] = codes(r, s);
      BRAID_LOOP(int c = 0; c < kC; ++c) {
        const Vu input = splat_bytes(x[c] + 4 * s);
        BRAID_LOOP(int r = 0; r < kR; ++r) {
          const Vs pairs = multiply_bytes<Kind>(w[r], input);
          Vs& p = partial[r][c];
          p = step == 0 ? pairs : p + pairs;
          if (step == kRun - 1) {
            Vi& total = sum[r][c];
            total = run == 0 ? add_pairs(p) : total + add_pairs(p);
            pin(total);
          } else {
            pin(p);
          }
        }
      }
    }
  }
#else
  BRAID_LOOP(int c = 0; c < kC; ++c) { BRAID_LOOP(int r = 0; r < kR; ++r) sum[r][c] = Vi{}; }
  BRAID_LOOP(int step = 0; step < kSteps; ++step) {
    const int s = first + step;
    Vu w[kR];
    BRAID_LOOP(int r = 0; r < kR; ++r) w[r] = codes(r, s);
    BRAID_LOOP(int c = 0; c < kC; ++c) {
      const Vu input = splat_bytes(x[c] + 4 * s);
      BRAID_LOOP(int r = 0; r < kR; ++r) {
        Vi& total = sum[r][c];
#if defined(BRAID_ISA_avx512)
        total = (Vi)_mm512_dpbusd_epi32((__m512i)total, (__m512i)w[r], (__m512i)input);
#else
        const Vu words = w[r];
        const Vs x_even = (Vs)(input << 8) >> 8, x_odd = (Vs)input >> 8;
        const Vs w_even = Kind::kSigned ? (Vs)(words << 8) >> 8 : (Vs)(words & 0x00ff00ff);
        const Vs w_odd = Kind::kSigned ? (Vs)words >> 8 : (Vs)((words >> 8) & 0x00ff00ff);
        total += multiply_pairs(w_even, x_even) + multiply_pairs(w_odd, x_odd);
#endif
      }
    }
  }
#endif
}

// The inputs of one token at one sub-block.
struct CodeInput {
  const int8_t* codes;  // 32
  const float* scale;   // 1
  const int32_t* sums;  // 2
};
// Those of neighbouring tokens.
struct CodeInputs {
  const int8_t* codes;
  const float* scales;
  const int32_t* sums;
  int64_t cols, sub_blocks;

  [[gnu::always_inline]] CodeInputs(const LinearTask& task, int64_t token, int64_t sub_block)
      : codes(task.codes + token * task.cols + 32 * sub_block),
        scales(task.scales + token * (task.cols / 32) + sub_block),
        sums(task.sums + 2 * (token * (task.cols / 32) + sub_block)),
        cols(task.cols),
        sub_blocks(task.cols / 32) {}
  [[gnu::always_inline]] CodeInput at(int64_t token, int64_t sub_block) const {
    return {codes + token * cols + 32 * sub_block, scales + token * sub_blocks + sub_block,
            sums + 2 * (token * sub_blocks + sub_block)};
  }
};

// Σ of codes of group `g`.
template <typename Kind>
BRAID_INLINE int32_t input_sum(const CodeInput& x, int g) {
  return Kind::kGroups == 1 ? x.sums[0] + x.sums[1] : x.sums[g];
}

// acc[r][c] += scale of x[c] · Σ w[r] · codes of x[c], for one sub-block of each of kR row groups.
// `codes(r, word)`, `scale(r, group)` and `min(r, group)` give what CodeBlock holds.
template <typename Kind, int kR, int kC, typename Codes, typename Scale, typename Min>
BRAID_INLINE void multiply_codes(const Codes& codes, const Scale& scale, const Min& min,
                                 const CodeInput (&x)[kC], Vf (&acc)[kR][kC]) {
  constexpr int kSteps = 8 / Kind::kGroups;
  const int8_t* inputs[kC];
  BRAID_LOOP(int c = 0; c < kC; ++c) inputs[c] = x[c].codes;
  Vf total[kR][kC];
  BRAID_LOOP(int g = 0; g < Kind::kGroups; ++g) {
    Vi dot[kR][kC];
    dot_codes<Kind, kSteps, kR, kC>(codes, g * kSteps, inputs, dot);
    BRAID_LOOP(int c = 0; c < kC; ++c) {
      Vi offset_sum{};
      if constexpr (Kind::kOffset != 0) {
        offset_sum = splat_i32(input_sum<Kind>(x[c], g) * Kind::kOffset);
      }
      BRAID_LOOP(int r = 0; r < kR; ++r) {
        const Vf value = to_vf(dot[r][c] - offset_sum);
        Vf t = g == 0 ? value * scale(r, g) : fma(value, scale(r, g), total[r][c]);
        if constexpr (Kind::kMin) {
          const Vf sum = splat(static_cast<float>(input_sum<Kind>(x[c], g)));
          t = fma(sum, min(r, g), t);
        }
        total[r][c] = t;
      }
    }
  }
  BRAID_LOOP(int c = 0; c < kC; ++c) {
    const Vf input_scale = splat(*x[c].scale);
    BRAID_LOOP(int r = 0; r < kR; ++r) acc[r][c] = fma(total[r][c], input_scale, acc[r][c]);
  }
}
// The same for blocks in memory.
template <typename Kind, int kR, int kC>
BRAID_INLINE void multiply_codes(const CodeBlock<Kind>* const (&w)[kR], const CodeInput (&x)[kC],
                                 Vf (&acc)[kR][kC]) {
  multiply_codes<Kind, kR, kC>(
      [&](int r, int i) __attribute__((always_inline)) { return w[r]->codes[i]; },
      [&](int r, int g) __attribute__((always_inline)) { return w[r]->scale[g]; },
      [&](int r, int g) __attribute__((always_inline)) { return w[r]->min[g]; }, x, acc);
}

// Writes the lanes of rows that exist.
BRAID_INLINE void store_lanes(float* y, Vf v, int64_t lanes) {
  if (lanes >= kLanes) {
    store(y, v);
  } else {
    for (int64_t i = 0; i < lanes; ++i) y[i] = v[i];
  }
}

inline constexpr int kTileGroups = 2;  // row groups that share a load of the inputs
inline constexpr int kMaxTokens = 64;  // of a range
inline constexpr int kPanelSubBlocks = 16;

// Sums of a tile: [token][row group].
typedef Vf TileSums[kMaxTokens][kTileGroups];

BRAID_INLINE void store_tile(const LinearTask& task, int64_t row, int64_t row_end,
                             const LinearRange& range, const TileSums& acc) {
  for (int64_t token = range.token_begin; token < range.token_end; ++token) {
    float* y = task.y + token * task.y_stride;
    for (int g = 0; g < kTileGroups; ++g) {
      const int64_t begin = row + g * kLanes;
      if (begin < row_end)
        store_lanes(y + begin, acc[token - range.token_begin][g], row_end - begin);
    }
  }
}

// Tokens that share a load of the weights. VPDPBUSD takes several cycles and two can start in each:
// more than ten sums are needed to keep them busy.
#if defined(BRAID_ISA_avx512)
inline constexpr int kMostTokens = 6;
#else
inline constexpr int kMostTokens = 4;
#endif

// Calls body(first token of the range, Index<how many>) for groups of at most kMost, 4 or 6,
// tokens that cover a range.
template <int kMost, typename Body>
BRAID_INLINE void for_token_groups(const LinearRange& range, const Body& body) {
  const int64_t tokens = range.token_end - range.token_begin;
  int64_t t = 0;
  if constexpr (kMost == 6) {
    for (; t + 6 <= tokens; t += 6) body(t, Index<6>{});
  }
  for (; t + 4 <= tokens; t += 4) body(t, Index<4>{});
  if (t + 2 <= tokens) {
    body(t, Index<2>{});
    t += 2;
  }
  if (t < tokens) body(t, Index<1>{});
}

// One row group × one token, decoding on the way.
template <typename Decoder>
[[gnu::noinline]] static void int8_direct(const LinearTask& task, int64_t row, int64_t row_end,
                                          int64_t token) {
  using Kind = typename Decoder::Kind;
  static_assert(Decoder::kSubBlocks == 1);
  const auto rows = Decoder::Rows::at(task, row);
  Prefetcher prefetch = prefetch_rows(task, row + kLanes, kLanes, row_end);
  const CodeInputs inputs(task, token, 0);
  Vf acc[1][1] = {};
  int64_t sub_block = 0;
  for (int64_t offset = 0; offset < task.row_bytes; offset += Decoder::kBlockBytes) {
    prefetch.advance(kLanes * Decoder::kBlockBytes);
    CodeBlock<Kind> block;
    Decoder::decode(rows, offset, &block);
    const CodeBlock<Kind>* const w[1] = {&block};
    const CodeInput x[1] = {inputs.at(0, sub_block++)};
    multiply_codes<Kind, 1, 1>(w, x, acc);
  }
  store_lanes(task.y + token * task.y_stride + row, acc[0][0], row_end - row);
}

// Sub-blocks [first, first + count) of a row group; both are multiples of kSubBlocks.
template <typename Decoder>
[[gnu::noinline]] static void decode_panel(const typename Decoder::Rows& rows, int64_t first,
                                           int count, CodeBlock<typename Decoder::Kind>* panel) {
  int64_t offset = first / Decoder::kSubBlocks * Decoder::kBlockBytes;
  for (int s = 0; s < count; s += Decoder::kSubBlocks, offset += Decoder::kBlockBytes) {
    Decoder::decode(rows, offset, panel + s);
  }
}

// kC tokens × kTileGroups row groups over a panel [group][kPanelSubBlocks]; adds to acc. For each
// sub-block `prefetch` advances by so many bytes: all at once would wait for the memory.
template <typename Kind, int kC>
[[gnu::noinline]] static void int8_panel(const LinearTask& task, const CodeBlock<Kind>* panel,
                                         int64_t sub_block, int count, int64_t token,
                                         Vf (*acc)[kTileGroups], Prefetcher& prefetch,
                                         int64_t prefetch_bytes) {
  const CodeInputs inputs(task, token, sub_block);
  Prefetcher ahead = prefetch;
  Vf sums[kTileGroups][kC];
  BRAID_LOOP(int c = 0; c < kC; ++c) {
    BRAID_LOOP(int r = 0; r < kTileGroups; ++r) sums[r][c] = acc[c][r];
  }
  for (int s = 0; s < count; ++s) {
    ahead.advance(prefetch_bytes);
    const CodeBlock<Kind>* const w[kTileGroups] = {panel + s, panel + kPanelSubBlocks + s};
    CodeInput x[kC];
    BRAID_LOOP(int c = 0; c < kC; ++c) x[c] = inputs.at(c, s);
    multiply_codes<Kind, kTileGroups, kC>(w, x, sums);
  }
  BRAID_LOOP(int c = 0; c < kC; ++c) {
    BRAID_LOOP(int r = 0; r < kTileGroups; ++r) acc[c][r] = sums[r][c];
  }
  prefetch = ahead;
}

// kTileGroups row groups × the tokens of the range.
template <typename Decoder>
[[gnu::noinline]] static void int8_tile(const LinearTask& task, int64_t row,
                                        const LinearRange& range) {
  using Kind = typename Decoder::Kind;
  constexpr int kTileRows = kTileGroups * kLanes;
  CodeBlock<Kind> panel[kTileGroups * kPanelSubBlocks];
  TileSums acc;
  const int64_t tokens = range.token_end - range.token_begin;
  for (int64_t t = 0; t < tokens; ++t) {
    for (Vf& sum : acc[t]) sum = Vf{};
  }
  typename Decoder::Rows rows[kTileGroups];
  for (int g = 0; g < kTileGroups; ++g) rows[g] = Decoder::Rows::at(task, row + g * kLanes);
  // The next tile, evenly over the passes of this one.
  Prefetcher prefetch = prefetch_rows(task, row + kTileRows, kTileRows, task.rows);
  const int64_t passes = (tokens + kMostTokens - 1) / kMostTokens;
  constexpr int64_t kBytes = kTileRows * Decoder::kBlockBytes / Decoder::kSubBlocks;
  const int64_t prefetch_bytes = (kBytes + passes - 1) / passes;
  const int64_t sub_blocks = task.cols / 32;
  for (int64_t first = 0; first < sub_blocks; first += kPanelSubBlocks) {
    const int64_t left = sub_blocks - first;
    const int count = static_cast<int>(left < kPanelSubBlocks ? left : kPanelSubBlocks);
    for (int g = 0; g < kTileGroups; ++g) {
      decode_panel<Decoder>(rows[g], first, count, panel + g * kPanelSubBlocks);
    }
    for_token_groups<kMostTokens>(
        range, [&](int64_t t, auto group) __attribute__((always_inline)) {
          int8_panel<Kind, group.value>(task, panel, first, count, range.token_begin + t, acc + t,
                                        prefetch, prefetch_bytes);
        });
  }
  store_tile(task, row, range.row_end, range, acc);
}

template <typename Decoder>
static void int8_kernel(const LinearTask& task, const LinearRange& range) {
  if constexpr (Decoder::kSubBlocks == 1) {
    if (range.token_end - range.token_begin == 1) {
      for (int64_t row = range.row_begin; row < range.row_end; row += kLanes) {
        int8_direct<Decoder>(task, row, range.row_end, range.token_begin);
      }
      return;
    }
  }
  for (int64_t row = range.row_begin; row < range.row_end; row += kTileGroups * kLanes) {
    int8_tile<Decoder>(task, row, range);
  }
}

}  // namespace braid::BRAID_ISA

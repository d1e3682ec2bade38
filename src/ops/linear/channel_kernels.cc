// Products of w8c weights: rows of int8 codes with one scale. With inputs that have one scale a
// token an output is the exact sum of products of codes, scaled once, whatever the order.

#include "ops/linear/channel_math.h"
#include "ops/linear/float_tile.h"

namespace braid::BRAID_ISA {
namespace {

// For products with float32 inputs.
struct ChannelDecoder {
  using Kind = SignedKind;
  struct Rows {
    RowGroup codes;
    Vf scale;
    [[gnu::always_inline]] static Rows at(const LinearTask& task, int64_t first) {
      Rows rows{RowGroup::at(task, first), {}};
      rows.scale = (Vf)load_words(rows.codes, 0);
      for (const uint8_t*& row : rows.codes.row) row += sizeof(RowHeaderW8C);
      return rows;
    }
  };
  static constexpr int kBlockBytes = kW8CBlock, kSubBlocks = 1;
  [[gnu::always_inline]] static void decode(const Rows& rows, int64_t offset,
                                            CodeBlock<Kind>* out) {
    Vu words[8];
    transpose32(rows.codes, offset, words);
    unroll<0, 8>(
        BRAID_UNROLLED(i) { out->codes[i.value] = words[i.value] ^ splat_u32(kSignedBias); });
    out->scale[0] = rows.scale;
  }
};

// kR rows × kC tokens, each sum in the lanes of a vector that run along the columns.
template <int kR, int kC>
[[gnu::noinline]] static void channel_dot(const LinearTask& task, int64_t row, int64_t token) {
  const uint8_t* weights[kR];
  const TokenCode* x[kC];
  for (int r = 0; r < kR; ++r) {
    weights[r] = task.weights + (row + r) * task.row_bytes + sizeof(RowHeaderW8C);
  }
  for (int c = 0; c < kC; ++c) x[c] = token_codes(task, token + c);
  Vi sums[kR][kC] = {};
  int64_t column = 0;
  for (; column + kDotColumns <= task.cols; column += kDotColumns) {
    DotVector w[kR];
    unroll<0, kR>(BRAID_UNROLLED(r) { w[r.value] = load_weights(weights[r.value] + column); });
    unroll<0, kC>(BRAID_UNROLLED(c) {
      const DotVector input = load_inputs(x[c.value] + column);
      unroll<0, kR>(BRAID_UNROLLED(r) {
        Vi& sum = sums[r.value][c.value];
        sum = multiply_add(sum, input, w[r.value]);
        pin(sum);
      });
    });
  }
  for (int r = 0; r < kR; ++r) {
    float scale;
    int32_t code_sum;
    std::memcpy(&scale, weights[r] - sizeof(RowHeaderW8C), 4);
    std::memcpy(&code_sum, weights[r] - 4, 4);
    for (int c = 0; c < kC; ++c) {
      int32_t total = 0;
      for (int i = 0; i < kLanes; ++i) total += sums[r][c][i];
      for (int64_t i = column; i < task.cols; ++i) {
        total += static_cast<int32_t>(x[c][i]) * static_cast<int8_t>(weights[r][i]);
      }
      total -= kTokenBias * code_sum;
      task.y[(token + c) * task.y_stride + row + r] =
          static_cast<float>(total) * (task.token_scales[token + c] * scale);
    }
  }
}

template <int kR>
static void channel_rows(const LinearTask& task, const LinearRange& range, int64_t row) {
  int64_t token = range.token_begin;
  for (; token + 2 <= range.token_end; token += 2) channel_dot<kR, 2>(task, row, token);
  if (token < range.token_end) channel_dot<kR, 1>(task, row, token);
}

void channel_kernel(const LinearTask& task, const LinearRange& range) {
  int64_t row = range.row_begin;
  for (; row + 4 <= range.row_end; row += 4) channel_rows<4>(task, range, row);
  for (; row < range.row_end; ++row) channel_rows<1>(task, range, row);
}

// Nearest integer, ties to even, for |x| below 2^22.
BRAID_INLINE Vi round_to_int(Vf x) {
  const Vf magic = splat(12582912.0f);  // 1.5 · 2^23
  return (Vi)(x + magic) - (Vi)magic;
}

void quantize_token(const float* x, int64_t cols, int8_t* codes, void* packed, float* scale) {
  Vf peaks{}, spoiled{};
  for (int64_t i = 0; i < cols; i += kLanes) {
    const Vf values = load(x + i);
    peaks = max(peaks, (Vf)((Vi)values & 0x7fffffff));
    spoiled += values * splat(0.0f);  // NaN if a value is not finite
  }
  const float largest = reduce_max(peaks);
  const float not_finite = reduce_add(spoiled);
  const bool usable = not_finite == 0.0f && largest >= 0x1p-100f;
  *scale = usable ? largest / 127.0f : not_finite;
  const Vf inverse = splat(usable ? 127.0f / largest : 0.0f);
  auto* const words = static_cast<TokenCode*>(packed);
  for (int64_t i = 0; i < cols; i += kLanes) {
    const Vi rounded = usable ? round_to_int(load(x + i) * inverse) : Vi{};
    for (int j = 0; j < kLanes; ++j) codes[i + j] = static_cast<int8_t>(rounded[j]);
    const Vi biased = rounded + kTokenBias;
    for (int j = 0; j < kLanes; ++j) words[i + j] = static_cast<TokenCode>(biased[j]);
  }
}

constexpr LinearKernels make_table() {
  LinearKernels table{};
  table.f32[static_cast<int>(FormatId::kW8C)] = float_kernel<ChannelDecoder>;
  table.int8[static_cast<int>(FormatId::kW8C)] = channel_kernel;
  return table;
}

}  // namespace

const LinearKernels kChannelKernels = make_table();
const TokenInputKernels kTokenInputKernels = {quantize_token, sizeof(TokenCode)};

}  // namespace braid::BRAID_ISA

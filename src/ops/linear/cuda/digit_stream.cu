#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "ops/cuda/tensor_map.h"
#include "ops/linear/cuda/digit_stream.h"
#include "ops/linear/cuda/stream_digits.cuh"

namespace braid::cuda {
namespace {

constexpr int kDigitWarps = 4;
constexpr int kGatedRowWarps = 8;  // units of a group's gate rows and the up rows

// A warp takes a group of a token, each lane four columns.
__global__ void __launch_bounds__(kDigitWarps* kWarp)
    digits_kernel(const uint16_t* x, int64_t x_stride, int tokens, int cols, int8_t* digits) {
  wait_for_inputs();
  const int lane = threadIdx.x % kWarp, token = blockIdx.y;
  const int group = blockIdx.x * kDigitWarps + threadIdx.x / kWarp;
  if (group * kDigitGroup >= cols) return;
  const uint2 pairs =
      *reinterpret_cast<const uint2*>(x + token * x_stride + group * kDigitGroup + 4 * lane);
  const float v[4] = {__uint_as_float(pairs.x << 16), __uint_as_float(pairs.x & 0xffff0000u),
                      __uint_as_float(pairs.y << 16), __uint_as_float(pairs.y & 0xffff0000u)};
  const DigitScale scale = digit_scale(warp_max(magnitude(float4{v[0], v[1], v[2], v[3]})));
  uint32_t high[4], low[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Digits of = digits_of(v[i], scale.inverse);
    high[i] = of.high & 0xff;
    low[i] = of.low & 0xff;
  }
  // Eight columns are two lanes'; the first writes columns 0, 4, 1, 5, the second 2, 6, 3, 7.
  const bool second = lane % 2 != 0;
  const uint32_t given = second ? high[0] | high[1] << 8 | low[0] << 16 | low[1] << 24
                                : high[2] | high[3] << 8 | low[2] << 16 | low[3] << 24;
  const uint32_t own = second ? high[2] | high[3] << 8 | low[2] << 16 | low[3] << 24
                              : high[0] | high[1] << 8 | low[0] << 16 | low[1] << 24;
  const uint32_t other = __shfl_xor_sync(0xffffffffu, given, 1);
  const uint32_t first_of = second ? other : own, last_of = second ? own : other;
  int8_t* const to = digits + 2 * token * int64_t{cols} + group * kDigitGroup +
                     digit_place(4 * (lane & ~1) + (second ? 2 : 0));
  *reinterpret_cast<uint32_t*>(to) = __byte_perm(first_of, last_of, 0x5140);
  *reinterpret_cast<uint32_t*>(to + cols) = __byte_perm(first_of, last_of, 0x7362);
  if (lane == 0) *digit_scale_at(digits, cols, tokens, token, group) = scale.scale;
}

}  // namespace

bool streams_digits(Stream& stream, const Products& products) {
  static const char* const chosen = std::getenv("BRAID_STREAM_DIGITS");
  return chosen != nullptr && products.tiles && products.format == FormatId::kW4G128 &&
         products.experts == 0 && can_stream(stream, products);
}

int64_t digit_bytes(int tokens, int cols) { return int64_t{digit_rows(tokens)} * cols; }

void make_digits(Stream& stream, const Products& products, int8_t* digits) {
  const int groups = products.cols / kDigitGroup;
  launch(stream, digits_kernel,
         dim3(static_cast<unsigned>(ceil_divide(groups, kDigitWarps)),
              static_cast<unsigned>(products.tokens)),
         dim3(kDigitWarps * kWarp), 0, products.packed, products.packed_stride, products.tokens,
         products.cols, digits);
}

StreamPlan digit_plan(const Products& products) {
  StreamPlan plan = stream_plan(products);
  plan.tokens = products.tokens;
  plan.token_tiles = products.tokens <= DigitSource::kTileTokens ? 1 : 4;
  plan.tile_tokens = DigitSource::kTileTokens * plan.token_tiles;
  return plan;
}

StreamPhase digit_phase(Stream& stream, const StreamPlan& plan, const Products& products,
                        const int8_t* digits, bool gated) {
  const int row_warps = gated ? kGatedRowWarps : tile_row_warps(stream, products.rows, false);
  StreamPhase phase = stream_phase(plan, products, row_warps, gated);
  phase.box_tokens = digit_rows(products.tokens);
  phase.inputs = make_tensor_map(digits, phase.box_tokens, products.cols / 2, products.cols / 2,
                                 phase.box_tokens);
  return phase;
}

void stream_digits(Stream& stream, StreamPlan& plan) {
  if (plan.token_tiles == 1) return launch_stream<DigitSource, 1>(stream, plan);
  launch_stream<DigitSource, 4>(stream, plan);
}

void stream_digit_products(Stream& stream, const Products& products) {
  const std::span<std::byte> scratch = stream.cuda().library_workspace();
  auto* const digits = reinterpret_cast<int8_t*>(scratch.data());
  for (int first = 0; first < products.tokens; first += kMostDigitTokens) {
    Products part = products;
    part.tokens = std::min(products.tokens - first, kMostDigitTokens);
    part.packed += first * products.packed_stride;
    BRAID_CHECK(digit_bytes(part.tokens, part.cols) <= static_cast<int64_t>(scratch.size()),
                "{} columns", part.cols);
    make_digits(stream, part, digits);
    StreamPlan plan = digit_plan(part);
    plan.num_phases = 1;
    plan.phases[0] = digit_phase(stream, plan, part, digits, false);
    plan.phases[0].y = products.y + first * products.y_stride;
    plan.phases[0].out_stride = products.y_stride;
    stream_digits(stream, plan);
  }
}

}  // namespace braid::cuda

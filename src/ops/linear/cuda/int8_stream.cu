#include <algorithm>

#include "ops/cuda/tensor_map.h"
#include "ops/linear/cuda/int8_stream.h"
#include "ops/linear/cuda/stream_codes.cuh"

namespace braid::cuda {
namespace {

constexpr int kMostRowWarps = 4, kMostTileTokens = 32;

// Those with which a multiprocessor reads the fewest weights and inputs. Sums are exact, so it
// makes no difference to results.
int row_warps_of(Stream& stream, const Int8Products& p) {
  if (p.experts > 0) return kMostRowWarps;
  const int rows = p.up != nullptr ? 2 * p.rows : p.rows;
  int best = 0;
  int64_t least = 0;
  for (int row_warps = p.up != nullptr ? 2 : 1; row_warps <= kMostRowWarps; row_warps *= 2) {
    const int unit_rows = kTileRows * row_warps;
    const int rounds =
        ceil_divide(ceil_divide(rows, unit_rows), stream.cuda().num_multiprocessors());
    const int64_t read = int64_t{rounds} * (unit_rows + std::min(p.tokens, kMostTileTokens));
    if (best == 0 || read < least) least = read, best = row_warps;
  }
  return best;
}

}  // namespace

bool streams_codes(const Int8Products& products) {
  return reinterpret_cast<uintptr_t>(products.weights) % 16 == 0 &&
         (products.experts > 0 ? products.tokens <= kMostCodesPerExpert * products.experts
                               : products.tokens <= kMostCodeTokens);
}

StreamPlan code_plan(int tokens) {
  StreamPlan plan{};
  plan.format = FormatId::kW8C;
  plan.tiles = true;
  plan.tokens = tokens;
  plan.token_tiles = tokens <= 8 ? 1 : kMostTileTokens / 8;
  return plan;
}

int code_row_warps(int cols) {
  int row_warps = kMostRowWarps;
  while (row_warps > 1 &&
         ceil_divide(cols, kSetWarps / row_warps * CodeSource::kPieceColumns) > kMostMadeSteps) {
    row_warps /= 2;
  }
  return row_warps;
}

StreamPhase code_phase(const StreamPlan& plan, const Int8Products& p, int row_warps) {
  StreamPhase phase{};
  phase.weights.tiles = p.weights;
  phase.up.tiles = p.up;
  phase.matrix_bytes = p.matrix_bytes;
  phase.panel_bytes = p.panel_bytes;
  phase.panels = ceil_divide(p.rows, kTileRows);
  phase.tile_units = p.cols / kUnitColumns;
  phase.rows = p.rows;
  phase.cols = p.cols;
  phase.gated = p.up != nullptr;
  phase.activation = p.activation;
  phase.routed = p.experts > 0;
  phase.row_warps = row_warps;
  while (1 << phase.row_shift < row_warps) ++phase.row_shift;
  phase.unit_rows = (phase.gated ? kTileRows / 2 : kTileRows) * row_warps;
  phase.steps = ceil_divide(p.cols, CodeSource::step_columns(phase));
  phase.box_tokens = 8 * plan.token_tiles;
  phase.x_rows = p.x_rows;
  phase.x = reinterpret_cast<const uint16_t*>(p.codes);
  phase.x_stride = p.codes_stride / 2;
  phase.x_scales = const_cast<float*>(p.scales);  // read alone, unless made
  if (p.codes != nullptr) {
    phase.inputs = make_tensor_map(p.codes, p.tokens, p.cols / 2, phase.x_stride, phase.box_tokens);
  }
  phase.y = p.y;
  phase.out_stride = p.y_stride;
  phase.counts = phase.awaits = -1;
  return phase;
}

void make_inputs_of(StreamPhase& phase, const StreamPhase& from, float* scales) {
  phase.activated = from.y;
  phase.activated_stride = from.out_stride;
  phase.x_scales = scales;
  phase.awaits = from.counts;
  phase.awaited_unit_rows = from.unit_rows;
}

void stream_codes(Stream& stream, StreamPlan& plan) {
  if (plan.token_tiles == 1) return launch_stream<CodeSource, 1>(stream, plan);
  launch_stream<CodeSource, 4>(stream, plan);
}

void stream_code_products(Stream& stream, const Int8Products& products) {
  const bool routed = products.experts > 0;
  StreamPlan plan = code_plan(routed ? 0 : products.tokens);
  if (routed) {
    plan.pairs = products.tokens;
    plan.experts = products.experts;
    plan.offsets = products.offsets;
  }
  plan.num_phases = 1;
  plan.phases[0] = code_phase(plan, products, row_warps_of(stream, products));
  stream_codes(stream, plan);
}

}  // namespace braid::cuda

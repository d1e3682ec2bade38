#include "ops/cuda/tensor_map.h"
#include "ops/linear/cuda/int8_stream.h"
#include "ops/linear/cuda/stream_codes.cuh"

namespace braid::cuda {
namespace {

constexpr int kMostTokens = 64;  // that are worth it

}  // namespace

bool streams_codes(const Int8Products& products) {
  return products.rounded == nullptr && products.experts == 0 && products.up == nullptr &&
         products.x_rows == nullptr && products.tokens <= kMostTokens &&
         reinterpret_cast<uintptr_t>(products.weights) % 16 == 0;
}

void stream_code_products(Stream& stream, const Int8Products& p) {
  StreamPlan plan{};
  plan.format = FormatId::kW8C;
  plan.tiles = true;
  plan.tokens = p.tokens;
  plan.token_tiles = p.tokens <= 8 ? 1 : 4;
  plan.num_phases = 1;
  StreamPhase& phase = plan.phases[0];
  phase.weights.tiles = p.weights;
  phase.panel_bytes = p.panel_bytes;
  phase.panels = ceil_divide(p.rows, kTileRows);
  phase.tile_units = p.cols / kUnitColumns;
  phase.rows = p.rows;
  phase.cols = p.cols;
  phase.row_warps = tile_row_warps(stream, p.rows, false);
  while (1 << phase.row_shift < phase.row_warps) ++phase.row_shift;
  phase.unit_rows = kTileRows * phase.row_warps;
  phase.steps = ceil_divide(p.cols, CodeSource::step_columns(phase));
  phase.box_tokens = 8 * plan.token_tiles;
  phase.inputs =
      make_tensor_map(p.codes, p.tokens, p.cols / 2, p.codes_stride / 2, phase.box_tokens);
  phase.x_scales = p.scales;
  phase.y = p.y;
  phase.out_stride = p.y_stride;
  phase.counts = phase.awaits = -1;
  if (plan.token_tiles == 1) return launch_stream<CodeSource, 1>(stream, plan);
  launch_stream<CodeSource, 4>(stream, plan);
}

}  // namespace braid::cuda

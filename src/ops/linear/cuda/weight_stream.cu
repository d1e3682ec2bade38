#include <algorithm>

#include "base/check.h"
#include "ops/cuda/tensor_map.h"
#include "ops/linear/cuda/launch_stream.cuh"
#include "ops/linear/cuda/row_warps.h"
#include "ops/linear/cuda/stream_rows.cuh"
#include "ops/linear/cuda/weight_stream.h"
#include "quant/tile_layout.h"

namespace braid::cuda {
namespace {

constexpr int kMostTileTokens = 16;  // that meet weights in tiles together

// Columns that a warp takes at a time, and those of a unit of tiles.
struct PieceSize {
  int columns, unit_columns;
};
PieceSize piece_size(FormatId format, bool tiles) {
  PieceSize size{RowSource::kPieceColumns, 0};
  if (tiles) {
    with_tile_format(format, [&](auto id) {
      using Layout = TileLayout<id()>;
      size = {tile_piece_columns<Layout>(), Layout::kUnitCols};
    });
  }
  return size;
}

}  // namespace

int StreamPlan::most_tiles(bool routed) const {
  const int tile = 8 * token_tiles;
  if (!routed) return ceil_divide(tokens, tile);
  return std::min(pairs, experts + pairs / tile);
}

bool can_stream(Stream& stream, const Products& products) {
  const bool suits = products.tiles ? products.cols % kChunkColumns == 0
                                    : (products.format == FormatId::kBF16 &&
                                       products.cols % RowSource::kPieceColumns == 0);
  return suits && stream.cuda().overlaps_kernels() && products.packed != nullptr &&
         products.packed_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(products.packed) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(products.weights) % 16 == 0;
}

StreamPlan stream_plan(const Products& products) {
  StreamPlan plan{};
  plan.format = products.format;
  plan.tiles = products.tiles;
  return plan;
}

int stream_token_tiles(const StreamPlan& plan, int tokens, int experts) {
  const int at_once = experts > 0 ? 2 * ceil_divide(tokens, experts) : tokens;
  return at_once <= 8 ? 1 : at_once <= 16 || plan.tiles ? 2 : 4;
}

int tile_row_warps(Stream& stream, int rows, bool gated) {
  const int at_once = stream.cuda().num_multiprocessors();
  int best = 2;
  double most = 0;
  for (int row_warps = 2; row_warps >= (gated ? 2 : 1); row_warps /= 2) {
    const int units = ceil_divide(rows, kTileRows * row_warps);
    const double busy = static_cast<double>(units) / (ceil_divide(units, at_once) * at_once);
    if (busy > most * 1.01) most = busy, best = row_warps;
  }
  return best;
}

int stream_row_warps(Stream& stream, const Products& products, int rows, bool gated) {
  if (!products.tiles) {
    constexpr int kEnoughUnits = 100;
    int row_warps = kSetWarps;
    while (row_warps > 2 && rows < kEnoughUnits * RowSource::kRows * row_warps &&
           products.cols % (2 * kSetWarps / row_warps * RowSource::kPieceColumns) == 0) {
      row_warps /= 2;
    }
    return row_warps;
  }
  return tile_row_warps(stream, rows, gated);
}

StreamPhase stream_phase(const StreamPlan& plan, const Products& products, int row_warps,
                         bool gated) {
  StreamPhase phase{};
  phase.row_warps = row_warps;
  while (1 << phase.row_shift < row_warps) ++phase.row_shift;
  phase.gated = gated;
  phase.rows = products.rows;
  phase.cols = products.cols;
  phase.routed = products.experts > 0;
  phase.x = products.packed;
  phase.x_stride = products.packed_stride;
  phase.counts = phase.awaits = -1;
  const PieceSize piece = piece_size(products.format, products.tiles);
  const int step_columns = kSetWarps / row_warps * piece.columns;
  phase.steps = ceil_divide(products.cols, step_columns);
  const int matrices = std::max(products.experts, 1);
  if (!products.tiles) {
    phase.unit_rows = (gated ? RowSource::kRows / 2 : RowSource::kRows) * row_warps;
    phase.expert_rows = static_cast<int>(products.matrix_bytes / products.row_bytes);
    phase.weights.boxes = make_tensor_map(products.weights, int64_t{phase.expert_rows} * matrices,
                                          products.cols, products.cols, phase.unit_rows);
    phase.box_tokens = 8 * plan.token_tiles;
    phase.inputs = make_tensor_map(products.packed, products.tokens, products.cols,
                                   products.packed_stride, phase.box_tokens);
    return phase;
  }
  phase.unit_rows = (gated ? kTileRows / 2 : kTileRows) * row_warps;
  phase.weights.tiles = products.weights;
  phase.matrix_bytes = products.matrix_bytes;
  phase.panel_bytes = kTileRows * products.row_bytes;
  phase.panels = ceil_divide(products.rows, kTileRows);
  phase.tile_units = products.cols / piece.unit_columns;
  phase.box_tokens = std::min(8 * plan.token_tiles, products.tokens);
  phase.inputs =
      make_chunk_map(products.packed, products.tokens, products.cols, products.packed_stride,
                     phase.box_tokens, step_columns / kChunkColumns);
  return phase;
}

void set_up_rows(const StreamPlan& plan, StreamPhase& phase, const Products& up, int row) {
  if (plan.tiles) {
    phase.up.tiles = up.weights + row * up.row_bytes;
  } else {
    phase.up.boxes =
        make_tensor_map(up.weights, int64_t{phase.expert_rows} * std::max(up.experts, 1), up.cols,
                        up.cols, phase.unit_rows);
    phase.up_row = row;
  }
}

void stream_weights(Stream& stream, StreamPlan& plan) {
  if (plan.tiles) {
    with_tile_format(plan.format, [&](auto id) { stream_tiles<id()>(stream, plan); });
  } else if (plan.token_tiles == 1) {
    launch_stream<RowSource, 1>(stream, plan);
  } else if (plan.token_tiles == 2) {
    launch_stream<RowSource, 2>(stream, plan);
  } else {
    launch_stream<RowSource, 4>(stream, plan);
  }
}

bool row_warps_can(const Products& products, int row_warps) {
  if (products.experts > 0) return false;
  if (products.tiles) return row_warps == 1 || row_warps == 2 || row_warps == 4;
  return (row_warps == 2 || row_warps == 4 || row_warps == kSetWarps) &&
         products.cols % (kSetWarps / row_warps * RowSource::kPieceColumns) == 0;
}

void stream_products(Stream& stream, const Products& products) {
  const bool routed = products.experts > 0;
  // The order of a token's sums does not depend on how many there are.
  const int rows = products.rows * std::max(products.experts, 1);
  stream_products_by(
      stream, products,
      routed && products.tiles ? 4 : stream_row_warps(stream, products, rows, false));
}

void stream_products_by(Stream& stream, const Products& products, int row_warps) {
  const bool routed = products.experts > 0;
  const int at_once = routed           ? products.tokens
                      : products.tiles ? kMostTileTokens
                                       : kMostStreamTokens;
  for (int first = 0; first < products.tokens; first += at_once) {
    Products part = products;
    part.tokens = std::min(products.tokens - first, at_once);
    part.packed += first * products.packed_stride;
    part.y += first * products.y_stride;
    StreamPlan plan = stream_plan(part);
    plan.num_phases = 1;
    plan.token_tiles = stream_token_tiles(plan, part.tokens, products.experts);
    StreamPhase& phase = plan.phases[0];
    phase = stream_phase(plan, part, row_warps, false);
    phase.y = part.y;
    phase.out_stride = products.y_stride;
    (routed ? plan.pairs : plan.tokens) = part.tokens;
    plan.experts = products.experts;
    plan.offsets = products.offsets;
    plan.slim = !routed && phase.units() <= stream.cuda().num_multiprocessors();
    stream_weights(stream, plan);
  }
}

}  // namespace braid::cuda

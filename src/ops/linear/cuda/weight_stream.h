#pragma once

#include <cuda.h>

#include <cstdint>

#include "ops/elementwise/elementwise.h"
#include "ops/linear/cuda/products.h"
#include "ops/moe/cuda/few_choices.h"

namespace braid::cuda {

// Products of weights with few tokens, as phases of one kernel whose blocks stay and read all
// weights in one stream: while a block finishes one tile, the copy engine brings the next ones, of
// the next phase too. Weights are bfloat16 rows or of the formats of quant/device_tiles.h, the same
// in all phases. For devices from Hopper on.

inline constexpr int kStreamPhases = 4;
inline constexpr int kMostStreamTokens = 32;  // that are worth it

// Where a phase finds a matrix, or a stack of them.
struct StreamMatrix {
  CUtensorMap boxes;     // rows: boxes of unit_rows rows
  const uint8_t* tiles;  // tiles: the first panel of the first matrix
};

struct StreamPhase {
  StreamMatrix weights;
  StreamMatrix up;       // gated
  int up_row;            // rows: of the first row of `up` in its map; of expert 0
  int expert_rows;       // rows: from an expert's first row to the next one's
  int64_t matrix_bytes;  // tiles: from an expert's first panel to the next one's
  int64_t panel_bytes;
  int panels;      // tiles: of `weights` that a matrix has
  int tile_units;  // tiles: of a panel
  int rows;        // outputs a token
  int unit_rows;   // of those, what a block makes at a time
  int num_units;   // units()
  int cols;
  int steps;      // of the columns
  int row_warps;  // 1 (tiles), 2, 4 or 8 of each eight warps; the others take further columns
  int row_shift;  // 2^row_shift row warps
  bool gated;     // outputs are activation(gate) ⊙ up, rounded to bfloat16
  bool routed;    // of experts
  bool early;     // the inputs were complete before the kernel in front let this one begin
  Activation activation;
  // bfloat16 [rows of x, cols]: boxes of all tokens of a tile, or, where pairs have the rows
  // x_rows, rows at multiples of 16 bytes. For weights in rows the latter needs 8 row warps.
  CUtensorMap inputs;
  int box_tokens;
  const int32_t* x_rows;
  const uint16_t* x;
  int64_t x_stride;
  const float* x_scales;  // of inputs of int8 codes (int8_stream.h), two to an element of x
  float* y;               // [tokens or pairs, rows], or if gated:
  uint16_t* packed;
  int64_t out_stride;
  // What others read has a counter for each kCountedColumns of its columns and each tile of tokens,
  // [tiles][columns]: `counts` is the first one of what this phase makes (-1: none), `awaits` that
  // of its inputs, whose counters must come to the number of units there are.
  int counts, awaits;
  int awaited_unit_rows;

  __host__ __device__ int units() const { return (rows + unit_rows - 1) / unit_rows; }
};

// Columns of a counter; inputs that others make have at most 32 of those.
inline constexpr int kCountedColumns = 1024, kMostCountedColumns = 32 * kCountedColumns;
__host__ __device__ inline int stream_counters(int columns) {
  return (columns + kCountedColumns - 1) / kCountedColumns;
}

struct StreamPlan {
  StreamPhase phases[kStreamPhases];
  int num_phases;
  FormatId format;
  bool tiles;
  int tokens;  // of phases that are not routed
  int pairs, experts;
  const int32_t* offsets;  // [experts + 1]
  FewChoices few;          // or the logits that tell; for one tile of tokens
  int token_tiles;         // 1, 2 or 4 of 8 tokens; tiles: 1 or 2
  bool slim;               // 4-bit tiles of one matrix: fewer threads

  int32_t* counters;
  int num_counters;
  int slots;                      // of the ring
  int slot_inputs;                // bytes
  int partial_tokens;             // whose sums have room in shared memory
  int partial_size, scales_size;  // in floats: of the sums of a unit, of the scales of two
  // Of lists in shared memory: tiles of experts, pairs (0: they are too many), and the units of the
  // last phase that a block may get where they are dealt out by what it had before (0: in turn).
  int most_entries, listed_pairs, most_dealt;

  // Tiles of tokens.
  int most_tiles(bool routed) const;
};

// Whether a stack of matrices [.., rows, cols] with inputs of `packed` can be.
bool can_stream(Stream& stream, const Products& products);

// A plan without phases, of these weights' format and layout; tokens, pairs, experts and offsets
// are the caller's to set.
StreamPlan stream_plan(const Products& products);
// Tiles of eight tokens that meet weights together; of experts by the average.
int stream_token_tiles(const StreamPlan& plan, int tokens, int experts);
// Row warps of a matrix in tiles, or of gate and up rows, that keep the most multiprocessors busy.
int tile_row_warps(Stream& stream, int rows, bool gated);
// Row warps for outputs of `rows` (of gate and up together) from products.cols; of the matrix and
// the device alone.
int stream_row_warps(Stream& stream, const Products& products, int rows, bool gated);
// Of one matrix or of experts, without outputs; gated: of the gate rows, of which there are
// products.rows in a matrix, without `up`. Inputs in the order of the tokens or pairs.
StreamPhase stream_phase(const StreamPlan& plan, const Products& products, int row_warps,
                         bool gated);
// The up rows of a gated phase: they begin at row `row` of `up`'s first matrix.
void set_up_rows(const StreamPlan& plan, StreamPhase& phase, const Products& up, int row);

// Queues the kernel of a plan whose phases, sizes and counters are known.
void stream_weights(Stream& stream, StreamPlan& plan);
// Of one phase, with y; any number of tokens.
void stream_products(Stream& stream, const Products& products);

}  // namespace braid::cuda

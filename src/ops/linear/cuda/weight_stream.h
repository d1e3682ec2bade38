#pragma once

#include <cuda.h>

#include <cstdint>

#include "ops/elementwise/elementwise.h"
#include "ops/linear/cuda/products.h"

namespace braid::cuda {

// Products of bfloat16 weights with few tokens, as phases of one kernel whose blocks stay and read
// all weights in one stream: while a block finishes one tile, the copy engine brings the next ones,
// of the next phase too. For devices from Hopper on.

inline constexpr int kStreamPhases = 4;
inline constexpr int kMostStreamTokens = 32;  // that meet a weight while it is read once

struct StreamPhase {
  CUtensorMap weights;  // boxes of box_rows() rows
  CUtensorMap up;       // gated
  int up_row;           // of the first row of `up` in its map; of expert 0
  int expert_rows;      // from an expert's first row to the next one's
  int rows;             // outputs a token
  int steps;            // of the columns, 64 for each of the column warps
  int row_warps;        // 2, 4 or 8 of the eight
  bool gated;           // outputs are activation(gate) ⊙ up, rounded to bfloat16
  bool routed;          // of experts
  bool early;           // the inputs were complete before the kernel in front of this one began
  Activation activation;
  // bfloat16 [rows of x, 64 · column warps · steps]: boxes of all tokens of a tile, or, where pairs
  // have the rows x_rows, rows at multiples of 16 bytes. The latter needs 8 row warps.
  CUtensorMap inputs;
  const int32_t* x_rows;
  const uint16_t* x;
  int64_t x_stride;
  float* y;  // [tokens or pairs, rows], or if gated:
  uint16_t* packed;
  int64_t out_stride;
  // Each tile of tokens has a counter in every phase that others read from: `counts` is this
  // phase's first one (-1: none), `awaits` that of the phase that makes x, whose counters must
  // come to `awaited`.
  int counts, awaits, awaited;

  __host__ __device__ int rows_a_unit() const { return (gated ? 8 : 16) * row_warps; }
  __host__ __device__ int units() const { return (rows + rows_a_unit() - 1) / rows_a_unit(); }
};

struct StreamPlan {
  StreamPhase phases[kStreamPhases];
  int num_phases;
  int tokens;  // of phases that are not routed
  int pairs, experts;
  const int32_t* offsets;  // [experts + 1]
  int token_tiles;         // 1, 2 or 4 of 8 tokens

  int32_t* counters;
  int num_counters;
  int slots;        // of the ring
  int slot_inputs;  // bytes
  int most_entries;

  // Tiles of tokens.
  int most_tiles(bool routed) const;
};

// Whether a stack of matrices [.., rows, cols] of bfloat16 rows with inputs of `packed` can be.
bool can_stream(Stream& stream, const Products& products);

// Tiles of eight tokens that meet weights together; of experts by the average.
int stream_token_tiles(int tokens, int experts);
// Row warps for outputs of `rows` (of gate and up together) from `cols`.
int stream_row_warps(int rows, int cols);
// Of one matrix or of experts, without outputs; gated: of the gate rows, of which there are
// products.rows in a matrix, without `up`. Inputs in the order of the tokens or pairs.
StreamPhase stream_phase(const StreamPlan& plan, const Products& products, int row_warps,
                         bool gated);

// Queues the kernel of a plan whose phases, sizes and counters are known.
void stream_weights(Stream& stream, StreamPlan& plan);
// Of one phase, with y.
void stream_products(Stream& stream, const Products& products);

}  // namespace braid::cuda

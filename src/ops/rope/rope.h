#pragma once

#include "tensor/index_list.h"
#include "tensor/stream.h"
#include "tensor/tensor_view.h"

namespace braid {

// Tables of the rotary embedding for the tokens of a step, shared by all layers of a kind:
// cos[t, i] = cos(a), sin[t, i] = sin(a), a = float32(positions[t]) · frequencies[i] in float32, as
// the reference computes it. frequencies: [pairs] float32; cos, sin: [tokens, pairs] float32.
void rope_tables(Stream& stream, const IndexList& positions, const TensorView& frequencies,
                 const TensorView& cos, const TensorView& sin);

// Rotates pairs (i, i + pair_distance), i < pairs, of every head in place; other elements stay:
//   x_i ← x_i·cos − x_j·sin,  x_j ← x_j·cos + x_i·sin.
// x: [tokens, heads, head_dim] float32. Gemma: pair_distance = head_dim / 2, also when fewer pairs
// turn
// ("proportional"); Qwen3-Next: pair_distance = pairs.
void rope(Stream& stream, const TensorView& x, const TensorView& cos, const TensorView& sin,
          int64_t pair_distance);

}  // namespace braid

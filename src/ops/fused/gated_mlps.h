#pragma once

#include <span>

#include "ops/elementwise/elementwise.h"
#include "ops/linear/linear.h"
#include "ops/moe/moe.h"

namespace braid {

// out = W_down·(f(W_gate·x) ⊙ (W_up·x)), of one block or of experts.
struct GatedMlpCall {
  Activation activation;
  const Weight* gate;  // [width, hidden] or [experts, width, hidden]; with the up rows after each
                       // matrix's gate rows if `up` is empty
  const Weight* up;
  const Weight* down;    // [hidden, width] or [experts, hidden, width]
  const LinearInput* x;  // [tokens, hidden]
  // Of experts: who meets whom, maybe in place (see route_in_place()). Null: every token.
  const ExpertGroups* groups;
  TensorView out;  // [tokens, hidden], or [pairs, hidden] sorted by expert. See gated_mlps().
  // x was made by an op in front of the last one that is queued, so it is complete when this one
  // begins and need not be waited for. (Every kernel that overlaps with the one in front of it
  // waits for it before it lets the next one begin, but for those of
  // StreamState::next_begins_ahead().)
  bool early = false;
};

// At most one call without groups and one with, as one pass over their weights, where the device
// has that; inputs of W_down are then rounded as x is. `out` is float32, or for many tokens of
// experts, the last call, bfloat16: their results are then rounded once (not on a deterministic
// stream). False: nothing was done. Sums have another order than those of the single ops; on a
// deterministic stream it and whether anything is done do not depend on the number of tokens.
bool gated_mlps(Stream& stream, Workspace& workspace, std::span<const GatedMlpCall> calls);

}  // namespace braid

#pragma once

#include <cstdint>

#include "tensor/tensor_view.h"

namespace braid {

// One layer's share of a recurrent store: what Gated DeltaNet layers remember, a slot a sequence.
// All float32. A slot number means the same sequence in every layer of a group.
//
// A step whose tokens may yet be rejected leaves the state as it was and logs what each token
// would have done to it; the next step first applies the logged tokens that were accepted. Applying
// a token from the log gives the very bits that a step of its own would have given.
struct RecurrentLayer {
  TensorView states;  // [slots, value_heads, value_dim, key_dim]: S transposed, key dim contiguous
  // Rows that entered the convolution, oldest first: the conv_width - 1 before the step, then (of a
  // logged step) its own.  [slots, conv_width - 1 + max_logged_tokens, channels]
  TensorView conv_rows;
  // The log, one entry per token of the last logged step.
  TensorView logged_keys;     // [slots, max_logged_tokens, key_heads, key_dim]: k, normalised
  TensorView logged_updates;  // [slots, max_logged_tokens, value_heads, value_dim]: d
  TensorView logged_decays;   // [slots, max_logged_tokens, value_heads]: e^g

  int64_t max_logged_tokens() const { return logged_keys.rank() == 0 ? 0 : logged_keys.dim(1); }
};

// The rows of a flat batch that belong to one sequence, and what to do with its slot.
struct RecurrentRows {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int32_t slot = 0;
  // The sequence starts with these rows: what the slot holds is of another one and counts as zero.
  bool fresh = false;
  // Tokens of the slot's log to apply before the rows; 0 if the last step was not logged.
  int32_t num_replayed = 0;
  // The rows may be rejected: at most max_logged_tokens() of them.
  bool logged = false;
};

}  // namespace braid

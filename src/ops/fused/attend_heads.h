#pragma once

#include <optional>
#include <span>

#include "ops/attention/attention.h"
#include "ops/fused/attention_heads.h"
#include "ops/linear/linear.h"

namespace braid {

struct AttendHeadsCall {
  // [tokens, heads, head_dim] and [tokens, kv_heads, head_dim] as projected; k and v empty for
  // layers that borrow keys and values. What they hold afterwards is undefined.
  TensorView q, k, v;
  const HeadOptions& heads;
  const AttentionOptions& attention;
  std::span<const SequenceRows> sequences;
  const PagedKv& cache;
};

// Positions up to which attend_heads() does steps of one row a sequence: those that the pages of
// the longest one hold, rounded up as device tables are, or those of the window.
inline constexpr int64_t kMostAttendedKeys = 4096;

// prepare_heads() (or prepare_queries()) and attention() in one pass, where the device has that:
// for steps with one row a sequence, no more than kMostAttendedKeys and pairs that are turned by
// fours (their number and distance), and, rounded, for others; on a deterministic stream all go as
// those others do.
// Nothing: not done, and the single ops are the way. With one row a sequence, not on a
// deterministic stream, the result's order of sums is another one, and depends on the number of
// sequences; otherwise the bits are those of the single ops. Cosines and sines must have been
// complete before the op that made q began.
// rounded: the result is the bfloat16 input [tokens, heads · head_dim] of products; otherwise its x
// holds the float32 values.
std::optional<LinearInput> attend_heads(Stream& stream, Workspace& workspace,
                                        const AttendHeadsCall& call, bool rounded);

}  // namespace braid

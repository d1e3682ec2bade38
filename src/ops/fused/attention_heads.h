#pragma once

#include <span>

#include "ops/attention/paged_kv.h"
#include "tensor/stream.h"
#include "tensor/tensor_view.h"
#include "tensor/workspace.h"

namespace braid {

// How the projections of an attention layer become queries, keys and values. Norms are over
// head_dim, as rms_norm; the rotary embedding as rope.
struct HeadOptions {
  TensorView q_norm, k_norm;   // [head_dim]
  bool normed_values = false;  // values get a norm without a weight
  float epsilon = 1e-6f;
  TensorView cos, sin;  // [tokens, pairs]
  int64_t pair_distance = 0;
};

// q ← rope(norm(q)) in place.  q: [tokens, heads, head_dim] float32, rows may be strided.
void prepare_queries(Stream& stream, const TensorView& q, const HeadOptions& options);

// The same, and stores rope(norm(k)) and v, or norm(v), in the cache.  k, v: [tokens, kv_heads,
// head_dim], v may be k if values get a
// norm; what they hold afterwards is undefined. On the CPU: rms_norm, rope and
// write_kv in turn; the results are the same bits in one pass.
void prepare_heads(Stream& stream, Workspace& workspace, const TensorView& q, const TensorView& k,
                   const TensorView& v, const HeadOptions& options,
                   std::span<const SequenceRows> sequences, const PagedKv& cache);

}  // namespace braid

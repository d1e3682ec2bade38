#pragma once

#include <cstdint>
#include <span>

#include "ops/attention/paged_kv.h"
#include "tensor/stream.h"
#include "tensor/tensor_view.h"
#include "tensor/workspace.h"

namespace braid {

// Stores the new rows' keys and values. k, v: [tokens, kv_heads, head_dim] float32, rounded to the
// store's type (ops/attention/paged_kv.h says what int8 costs).
void write_kv(Stream& stream, const TensorView& k, const TensorView& v,
              std::span<const SequenceRows> sequences, const PagedKv& cache);

struct AttentionOptions {
  float scale = 1;
  int64_t window = 0;  // keys seen, the query's own included; 0: all
};

// Causal attention of the new rows over what the cache holds, their own keys included (write_kv
// first). q, out: [tokens, heads, head_dim] float32. Query head h reads KV head h / (heads /
// kv_heads). Keys are visited in tiles aligned to absolute positions with an online softmax in
// float32, so a row's result does not depend on its chunk, its batch mates or the number of
// threads.
void attention(Stream& stream, Workspace& workspace, const TensorView& q, const PagedKv& cache,
               std::span<const SequenceRows> sequences, const AttentionOptions& options,
               const TensorView& out);

}  // namespace braid

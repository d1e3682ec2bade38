#pragma once

#include "layers/linear.h"
#include "layers/norm.h"
#include "layers/rotary.h"
#include "layers/step_context.h"
#include "ops/attention/attention.h"

namespace braid {

// Queries, keys and values as attention takes them, from their projections q [tokens, heads,
// head_dim], k and v [tokens, kv_heads, head_dim] (empty if the layer borrows those of another):
// head norms, rotary embedding, and keys and values into the cache. v: null for no norm.
struct HeadNorms {
  const RmsNorm& q;
  const RmsNorm& k;
  const RmsNorm* v = nullptr;
};
void prepare_heads(StepContext& step, int64_t layer, const TensorView& q, const TensorView& k,
                   const TensorView& v, const HeadNorms& norms, const Rotary& rotary,
                   const Rotary::Tables& tables);

// Both of these with their results: [tokens, heads · head_dim], as float32 values or, for
// attend_input(), rounded for the matrix that reads them; in one go where that is faster.
struct HeadProjections {
  TensorView q, k, v;
};
TensorView attend_heads(StepContext& step, int64_t layer, const HeadProjections& heads,
                        const HeadNorms& norms, const Rotary& rotary, const Rotary::Tables& tables,
                        const AttentionOptions& options);
LinearInput attend_input(StepContext& step, int64_t layer, const HeadProjections& heads,
                         const HeadNorms& norms, const Rotary& rotary, const Rotary::Tables& tables,
                         const AttentionOptions& options, const Linear& reader);

// Attention of the step's rows over what `layer` (or the layer it borrows from) has stored.
// q: [tokens, heads, head_dim]; result: [tokens, heads · head_dim], in the step's workspace.
TensorView attend(StepContext& step, int64_t layer, const TensorView& q,
                  const AttentionOptions& options);

}  // namespace braid

#pragma once

#include "layers/step_context.h"
#include "ops/attention/attention.h"

namespace braid {

// Stores the new keys and values of `layer`.  k, v: [tokens, kv_heads, head_dim].
void store_kv(StepContext& step, int64_t layer, const TensorView& k, const TensorView& v);

// Attention of the step's rows over what `layer` (or the layer it borrows from) has stored.
// q: [tokens, heads, head_dim]; result: [tokens, heads · head_dim], in the step's workspace.
TensorView attend(StepContext& step, int64_t layer, const TensorView& q,
                  const AttentionOptions& options);

}  // namespace braid

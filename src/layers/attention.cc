#include "layers/attention.h"

#include "ops/fused/attention_heads.h"

namespace braid {

void prepare_heads(StepContext& step, int64_t layer, const TensorView& q, const TensorView& k,
                   const TensorView& v, const HeadNorms& norms, const Rotary& rotary,
                   const Rotary::Tables& tables) {
  HeadOptions options{.q_norm = norms.q.weight(),
                      .normed_values = norms.v != nullptr,
                      .epsilon = norms.q.epsilon(),
                      .cos = tables.cos,
                      .sin = tables.sin,
                      .pair_distance = rotary.pair_distance()};
  if (k.empty()) return prepare_queries(step.stream, q, options);
  options.k_norm = norms.k.weight();
  const StepContext::LayerKv& kv = step.layer_kv[layer];
  braid::prepare_heads(step.stream, step.workspace, q, k, v, options, kv.sequences, kv.store);
}

TensorView attend(StepContext& step, int64_t layer, const TensorView& q,
                  const AttentionOptions& options) {
  const StepContext::LayerKv& kv = step.layer_kv[layer];
  TensorView out = step.workspace.take(DType::kF32, q.shape());
  attention(step.stream, step.workspace, q, kv.store, kv.sequences, options, out);
  return out.reshape({q.dim(0), q.dim(1) * q.dim(2)});
}

}  // namespace braid

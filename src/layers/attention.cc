#include "layers/attention.h"

namespace braid {

void store_kv(StepContext& step, int64_t layer, const TensorView& k, const TensorView& v) {
  const StepContext::LayerKv& kv = step.layer_kv[layer];
  write_kv(step.stream, k, v, kv.sequences, kv.store);
}

TensorView attend(StepContext& step, int64_t layer, const TensorView& q,
                  const AttentionOptions& options) {
  const StepContext::LayerKv& kv = step.layer_kv[layer];
  TensorView out = step.workspace.take(DType::kF32, q.shape());
  attention(step.stream, step.workspace, q, kv.store, kv.sequences, options, out);
  return out.reshape({q.dim(0), q.dim(1) * q.dim(2)});
}

}  // namespace braid

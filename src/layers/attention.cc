#include "layers/attention.h"

#include "ops/fused/attend_heads.h"
#include "ops/fused/attention_heads.h"

namespace braid {
namespace {

HeadOptions head_options(const TensorView& k, const HeadNorms& norms, const Rotary& rotary,
                         const Rotary::Tables& tables) {
  HeadOptions options{.q_norm = norms.q.weight(),
                      .normed_values = norms.v != nullptr,
                      .epsilon = norms.q.epsilon(),
                      .cos = tables.cos,
                      .sin = tables.sin,
                      .pair_distance = rotary.pair_distance()};
  if (!k.empty()) options.k_norm = norms.k.weight();
  return options;
}

// Nothing, if that is not to be had in one go.
std::optional<LinearInput> attend_at_once(StepContext& step, int64_t layer,
                                          const HeadProjections& heads, const HeadOptions& options,
                                          const AttentionOptions& attention, bool rounded) {
  if (step.product_observer != nullptr) return std::nullopt;
  const StepContext::LayerKv& kv = step.layer_kv[layer];
  return attend_heads(step.stream, step.workspace,
                      {heads.q, heads.k, heads.v, options, attention, kv.sequences, kv.store},
                      rounded);
}

}  // namespace

TensorView attend_heads(StepContext& step, int64_t layer, const HeadProjections& heads,
                        const HeadNorms& norms, const Rotary& rotary, const Rotary::Tables& tables,
                        const AttentionOptions& options) {
  const HeadOptions head = head_options(heads.k, norms, rotary, tables);
  if (const auto done = attend_at_once(step, layer, heads, head, options, false)) return done->x;
  prepare_heads(step, layer, heads.q, heads.k, heads.v, norms, rotary, tables);
  return attend(step, layer, heads.q, options);
}

LinearInput attend_input(StepContext& step, int64_t layer, const HeadProjections& heads,
                         const HeadNorms& norms, const Rotary& rotary, const Rotary::Tables& tables,
                         const AttentionOptions& options, const Linear& reader) {
  const InputRounding rounding = input_rounding(step, {&reader.weight()});
  if (rounding.precision == ActivationPrecision::kBF16) {
    const HeadOptions head = head_options(heads.k, norms, rotary, tables);
    if (const auto done = attend_at_once(step, layer, heads, head, options, true)) return *done;
  }
  prepare_heads(step, layer, heads.q, heads.k, heads.v, norms, rotary, tables);
  return prepare_input(step, attend(step, layer, heads.q, options), {&reader.weight()});
}

void prepare_heads(StepContext& step, int64_t layer, const TensorView& q, const TensorView& k,
                   const TensorView& v, const HeadNorms& norms, const Rotary& rotary,
                   const Rotary::Tables& tables) {
  const HeadOptions options = head_options(k, norms, rotary, tables);
  if (k.empty()) return prepare_queries(step.stream, q, options);
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

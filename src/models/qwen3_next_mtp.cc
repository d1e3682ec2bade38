#include "models/qwen3_next_mtp.h"

#include "models/layer_binder.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"

namespace braid {

Qwen3NextMtp::Qwen3NextMtp(const Qwen3NextConfig& config, const Model& decoder,
                           WeightBinder& binder, const Linear& embedding, const Linear& head)
    : decoder_(decoder),
      cache_{config.num_kv_heads, config.head_dim},
      embedding_(embedding),
      head_(head),
      rotary_(config.rotary()) {
  const int64_t hidden = config.hidden_size;
  const std::string prefix = "mtp.layers.0.";
  const bool sparse = config.num_experts > 0 && !binder.has(prefix + "mlp.gate_proj.weight");
  layer_.emplace(config, Qwen3NextConfig::Layer{.recurrent = false, .sparse = sparse}, binder,
                 prefix);

  LayerInfo ignored;
  LayerBinder bind(binder, "mtp.", {config.rms_norm_eps, config.storage.norm_offset}, ignored);
  embedding_norm_ = bind.norm("pre_fc_norm_embedding", hidden);
  hidden_norm_ = bind.norm("pre_fc_norm_hidden", hidden);
  final_norm_ = bind.norm("norm", hidden);
  fc_ = bind.linear("fc", hidden, 2 * hidden);
  if (bind.has("embed_tokens.weight")) {
    embedding_ = bind.linear("embed_tokens", config.vocab_size, hidden);
  }
  if (bind.has("lm_head.weight")) head_ = bind.linear("lm_head", config.vocab_size, hidden);
}

CacheLayout Qwen3NextMtp::cache_layout() const { return {{cache_}}; }

TensorView Qwen3NextMtp::embed(StepContext& step) const {
  const TensorView x = step.workspace.take(DType::kF32, {step.num_tokens(), hidden_size()});
  embedding(step.stream, embedding_.weight(), step.token_ids, 1, x);
  return x;
}

void Qwen3NextMtp::place(Placement& placement) {
  placement.place(embedding_, head_, embedding_norm_, hidden_norm_, final_norm_, fc_, rotary_,
                  *layer_);
}

TensorView Qwen3NextMtp::forward(StepContext& step) const {
  const int64_t tokens = step.num_tokens();
  const int64_t hidden = hidden_size();
  BRAID_CHECK((step.backbone_hidden.shape() == Shape{tokens, hidden}), "hidden states {} of {}",
              to_string(step.backbone_hidden.shape()), tokens);
  // [norm(embedding) ‖ norm(hidden)]
  const TensorView pair = step.workspace.take(DType::kF32, {tokens, 2 * hidden});
  embedding_norm_.run_to(step, embed(step), pair.columns(0, hidden));
  hidden_norm_.run_to(step, step.backbone_hidden, pair.columns(hidden, hidden));
  const TensorView x = fc_.run(step, pair);
  const PassedNorm passed;
  Qwen3NextLayer::Passing passing{.x = x, .next = nullptr, .passed = passed};
  layer_->run(step, 0, rotary_, rotary_.tables(step), passing);
  if (step.observer != nullptr) step.observer->layer_output(0, x);

  const TensorView rows =
      step.workspace.take(DType::kF32, {static_cast<int64_t>(step.logits_rows.size()), hidden});
  if (step.wants_hidden) {
    step.hidden = final_norm_.run(step, x);
    gather_rows(step.stream, step.hidden, step.logits_rows, rows);
  } else {
    gather_rows(step.stream, x, step.logits_rows, rows);
    final_norm_.run_in_place(step, rows);
  }
  return head_.run(step, rows);
}

}  // namespace braid

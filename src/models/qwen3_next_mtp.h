#pragma once

#include "models/model.h"
#include "models/qwen3_next_config.h"
#include "models/qwen3_next_layer.h"

namespace braid {

// The multi-token-prediction head of Qwen3-Next and Qwen3.5, as a model of one layer. A row pairs
// the decoder's hidden state at position p (after its final norm; or, further on, this head's own)
// with the token at p + 1, and predicts the token at p + 2:
//   c = W_fc·[norm(embed(token)) ‖ norm(hidden)], one gated-attention layer, norm, shared head.
// Steps carry the token in token_ids, the hidden state in backbone_hidden, p in positions.
class Qwen3NextMtp : public Model {
 public:
  // Part of `decoder`, whose embedding and head it uses where the checkpoint has none for it.
  Qwen3NextMtp(const Qwen3NextConfig& config, const Model& decoder, WeightBinder& binder,
               const Linear& embedding, const Linear& head);

  std::string family() const override { return decoder_.family() + "_mtp"; }
  int64_t vocab_size() const override { return decoder_.vocab_size(); }
  int64_t hidden_size() const override { return decoder_.hidden_size(); }
  int64_t num_layers() const override { return 1; }
  int64_t max_positions() const override { return decoder_.max_positions(); }
  CacheLayout cache_layout() const override;
  KvScales kv_scales(int64_t) const override { return layer_->kv_scales(); }
  LayerInfo layer_info(int64_t) const override { return layer_->info(); }
  const LoadReport& load_report() const override { return decoder_.load_report(); }
  const Weight* vocabulary_head() const override { return &head_.weight(); }
  // The pair and what rounding makes of it, the embedding, what the step leaves.
  int64_t shared_elements_per_token() const override { return 7 * hidden_size(); }
  TensorView embed(StepContext& step) const override;
  // If wanted, step.hidden gets the rows after the head's norm: what the next draft starts from.
  void place(Placement& placement) override;
  TensorView forward(StepContext& step) const override;

 private:
  const Model& decoder_;
  FullKv cache_;
  Linear embedding_, head_;
  RmsNorm embedding_norm_, hidden_norm_, final_norm_;
  Linear fc_;  // [hidden, 2·hidden]: the columns of the embedding first
  Rotary rotary_;
  std::optional<Qwen3NextLayer> layer_;
};

}  // namespace braid

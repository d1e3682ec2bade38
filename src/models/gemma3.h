#pragma once

#include <vector>

#include "checkpoint/model_files.h"
#include "layers/gated_mlp.h"
#include "layers/linear.h"
#include "layers/norm.h"
#include "layers/rotary.h"
#include "models/gemma3_config.h"
#include "models/model.h"

namespace braid {

// Gemma 3 text decoder: sliding and full attention 5:1, norms around every block.
// Mathematics: transformers models/gemma3/modeling_gemma3.py.
class Gemma3 : public Model {
 public:
  // Binds and, on any mismatch, throws one Error that lists it.
  Gemma3(Gemma3Config config, ModelFiles& files);

  std::string family() const override { return "gemma3"; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t hidden_size() const override { return config_.hidden_size; }
  int64_t num_layers() const override { return static_cast<int64_t>(config_.sliding.size()); }
  int64_t max_positions() const override { return config_.max_positions; }
  CacheLayout cache_layout() const override;
  KvScales kv_scales(int64_t layer) const override { return layers_[layer].kv_scales; }
  LayerInfo layer_info(int64_t layer) const override { return layers_[layer].info; }
  const LoadReport& load_report() const override { return load_report_; }
  TensorView embed(StepContext& step) const override;
  void place(Placement& placement) override;
  void place_shared(Placement& placement) override;
  void place_layer(int64_t layer, Placement& placement) override;
  void rebind_layer(int64_t layer, const WeightMap& weights) override;
  TensorView forward(StepContext& step) const override;

 private:
  struct Layer {
    RmsNorm input_norm, post_attention_norm, pre_mlp_norm, post_mlp_norm;
    Linear q, k, v, output;
    RmsNorm q_norm, k_norm;
    GatedMlp mlp;
    KvScales kv_scales;
    LayerInfo info;
  };

  Layer bind_layer(WeightBinder& binder, int64_t index) const;
  void decoder_layer(StepContext& step, int64_t index, const Rotary::Tables& tables,
                     const TensorView& x) const;
  TensorView attend_block(StepContext& step, int64_t index, const Rotary::Tables& tables,
                          const TensorView& x) const;
  TensorView logits(StepContext& step, const TensorView& x) const;

  Gemma3Config config_;
  Linear embedding_;
  Linear head_;
  RmsNorm final_norm_;
  Rotary sliding_rope_, full_rope_;
  std::vector<Layer> layers_;
  LoadReport load_report_;
};

}  // namespace braid

#pragma once

#include <memory>
#include <vector>

#include "checkpoint/model_files.h"
#include "models/model.h"
#include "models/qwen3_next_config.h"
#include "models/qwen3_next_layer.h"
#include "models/qwen3_next_mtp.h"

namespace braid {

// Text decoder of Qwen3-Next, Qwen3.5 and Qwen3.5-MoE: three Gated DeltaNet layers to one of gated
// attention, dense or with experts, and perhaps a head that predicts one token more.
// Mathematics: transformers models/qwen3_next/modeling_qwen3_next.py.
class Qwen3Next : public Model {
 public:
  // Binds and, on any mismatch, throws one Error that lists it.
  Qwen3Next(Qwen3NextConfig config, ModelFiles& files);

  std::string family() const override { return config_.family; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t hidden_size() const override { return config_.hidden_size; }
  int64_t num_layers() const override { return static_cast<int64_t>(layers_.size()); }
  int64_t max_positions() const override { return config_.max_positions; }
  CacheLayout cache_layout() const override;
  KvScales kv_scales(int64_t layer) const override { return layers_[layer].kv_scales(); }
  LayerInfo layer_info(int64_t layer) const override { return layers_[layer].info(); }
  const LoadReport& load_report() const override { return load_report_; }
  TensorView embed(StepContext& step) const override;
  const Model* draft_head() const override { return mtp_.get(); }
  // Chunks of the delta rule restart with each step, so that results depend on the split unless it
  // is between chunks.
  int64_t prefill_alignment() const override;
  void place(Placement& placement) override;
  void place_shared(Placement& placement) override;
  void place_layer(int64_t layer, Placement& placement) override;
  void rebind_layer(int64_t layer, const WeightMap& weights) override;
  TensorView forward(StepContext& step) const override;

 private:
  TensorView logits(StepContext& step, const TensorView& x) const;

  Qwen3NextConfig config_;
  Linear embedding_;
  Linear head_;
  RmsNorm final_norm_;
  Rotary rotary_;
  std::vector<Qwen3NextLayer> layers_;
  std::unique_ptr<Qwen3NextMtp> mtp_;
  LoadReport load_report_;
};

}  // namespace braid

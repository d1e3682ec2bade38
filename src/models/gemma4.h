#pragma once

#include <memory>
#include <vector>

#include "checkpoint/model_files.h"
#include "layers/gated_mlp.h"
#include "layers/linear.h"
#include "layers/mixture_of_experts.h"
#include "layers/norm.h"
#include "layers/rotary.h"
#include "models/gemma4_config.h"
#include "models/model.h"

namespace braid {

class LayerBinder;

// Gemma 4 text decoder, all sizes: sliding and full attention with two head sizes, full layers
// whose values come from the key projection, dense or dense-beside-MoE feed-forward, per-layer
// embeddings, a tail of layers that borrow keys and values, a scalar per layer, soft-capped logits.
// Mathematics: transformers models/gemma4/modeling_gemma4.py.
class Gemma4 : public Model {
 public:
  // Binds and, on any mismatch, throws one Error that lists it.
  Gemma4(Gemma4Config config, ModelFiles& files);

  std::string family() const override { return "gemma4"; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t hidden_size() const override { return config_.hidden_size; }
  int64_t num_layers() const override { return static_cast<int64_t>(config_.layers.size()); }
  int64_t max_positions() const override { return config_.max_positions; }
  CacheLayout cache_layout() const override;
  KvScales kv_scales(int64_t layer) const override { return layers_[layer].kv_scales; }
  int64_t shared_elements_per_token() const override {
    return 2 * num_layers() * config_.per_layer_width;
  }
  LayerInfo layer_info(int64_t layer) const override;
  const LoadReport& load_report() const override { return load_report_; }
  TensorView embed(StepContext& step) const override;
  void place(Placement& placement) override;
  void place_shared(Placement& placement) override;
  void place_layer(int64_t layer, Placement& placement) override;
  void rebind_layer(int64_t layer, const WeightMap& weights) override;
  TensorView forward(StepContext& step) const override;

 private:
  struct Attention {
    Linear q, k, v, output;  // k, v empty where borrowed; v empty where values come from keys
    RmsNorm q_norm, k_norm, v_norm;
  };
  struct Moe {
    RmsNorm post_mlp_norm;  // of the dense branch
    RmsNorm pre_experts_norm;
    RmsNorm post_experts_norm;
    RmsNorm router_norm;  // its weight: router.scale · hidden^(−1/2)
    Linear router;
    MixtureOfExperts experts;
  };
  struct PerLayerInput {
    Linear gate, projection;
    RmsNorm post_norm;
  };
  struct Layer {
    RmsNorm input_norm, post_attention_norm, pre_mlp_norm, post_mlp_norm;
    Attention attention;
    GatedMlp mlp;
    std::unique_ptr<Moe> moe;
    std::unique_ptr<PerLayerInput> per_layer_input;
    float scalar = 1;
    KvScales kv_scales;
    LayerInfo info;
  };
  // What the layers of one step share.
  struct Shared {
    Rotary::Tables sliding_rope, full_rope;
    TensorView per_layer_inputs;  // [tokens, layers · per_layer_width]
  };

  Layer bind_layer(WeightBinder& binder, int64_t index) const;
  void bind_moe(LayerBinder& bind, Moe& moe, LayerInfo& info) const;

  TensorView per_layer_inputs(StepContext& step, const TensorView& x) const;
  void decoder_layer(StepContext& step, int64_t index, const Shared& shared, const TensorView& x,
                     const PassedNorm& passed, LinearInput& input) const;
  TensorView attend_block(StepContext& step, int64_t index, const Shared& shared,
                          const TensorView& x, const LinearInput& made) const;
  TensorView dense_mlp(StepContext& step, const Layer& layer, const ResidualBranch& attended,
                       const TensorView& x) const;
  void add_mlp_and_experts(StepContext& step, const Layer& layer, const ResidualBranch& attended,
                           const TensorView& x, PassedInput& made) const;
  static float end_factor(const Layer& layer);
  void inject_per_layer_input(StepContext& step, const PerLayerInput& injection,
                              const TensorView& u, const TensorView& x) const;
  TensorView logits(StepContext& step, const TensorView& x) const;

  Gemma4Config config_;
  Linear embedding_;
  Linear head_;
  RmsNorm final_norm_;
  Rotary sliding_rope_, full_rope_;
  Linear per_layer_embedding_, per_layer_projection_;
  RmsNorm per_layer_norm_;
  std::vector<Layer> layers_;
  LoadReport load_report_;
};

}  // namespace braid

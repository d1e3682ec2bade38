#pragma once

#include <optional>
#include <string>

#include "layers/gated_delta_net.h"
#include "layers/gated_mlp.h"
#include "layers/linear.h"
#include "layers/norm.h"
#include "layers/rotary.h"
#include "layers/shared_expert_moe.h"
#include "models/model.h"
#include "models/qwen3_next_config.h"

namespace braid {

class LayerBinder;

// One decoder layer of Qwen3-Next and Qwen3.5: Gated DeltaNet or gated attention, then experts or a
// dense MLP, each behind a norm and added to the residual stream.
class Qwen3NextLayer {
 public:
  // Binds the tensors below `prefix` ("layers.3."). Faults go to the binder's list.
  Qwen3NextLayer(const Qwen3NextConfig& config, const Qwen3NextConfig::Layer& kind,
                 WeightBinder& binder, const std::string& prefix);

  // What the layers of a pass hand on.
  struct Passing {
    const TensorView& x;         // [tokens, hidden], updated in place
    const Qwen3NextLayer* next;  // or null
    const PassedNorm& passed;    // for the input of the next one
    LinearInput input = {};      // of this layer, if the one before has made it; then of the next
  };
  // `index` names the layer's cache.
  void run(StepContext& step, int64_t index, const Rotary& rotary, const Rotary::Tables& tables,
           Passing& passing) const;

  void place(Placement& placement);

  const LayerInfo& info() const { return info_; }
  KvScales kv_scales() const { return attention_ ? attention_->kv_scales : KvScales{}; }

 private:
  struct Attention {
    int64_t num_heads = 0;
    int64_t num_kv_heads = 0;
    int64_t head_dim = 0;
    Linear q, gate, k, v, output;
    RmsNorm q_norm, k_norm;
    KvScales kv_scales = {};

    TensorView run(StepContext& step, int64_t index, const Rotary& rotary,
                   const Rotary::Tables& tables, const LinearInput& input) const;
  };

  // Of the token mixer.
  InputRounding input_rounding(const StepContext& step) const;
  TensorView mix_tokens(StepContext& step, int64_t index, const Rotary& rotary,
                        const Rotary::Tables& tables, const Passing& passing) const;
  void feed_forward(StepContext& step, const ResidualBranch& mixed, Passing& passing) const;

  static Attention bind_attention(const Qwen3NextConfig& config, LayerBinder& bind);
  static GatedDeltaNet bind_delta_net(const Qwen3NextConfig& config, LayerBinder& bind);
  static SharedExpertMoe bind_experts(const Qwen3NextConfig& config, LayerBinder& bind);

  RmsNorm input_norm_, post_attention_norm_;
  std::optional<GatedDeltaNet> delta_net_;
  std::optional<Attention> attention_;  // without delta_net_
  std::optional<SharedExpertMoe> experts_;
  std::optional<GatedMlp> mlp_;  // without experts_
  LayerInfo info_;
};

}  // namespace braid

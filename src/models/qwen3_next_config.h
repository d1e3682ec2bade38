#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/config_reader.h"
#include "checkpoint/gguf.h"
#include "checkpoint/weight_map.h"
#include "layers/gated_delta_net.h"
#include "layers/rotary.h"
#include "models/rope_config.h"
#include "models/yarn_config.h"
#include "ops/moe/moe.h"

namespace braid {

// Everything that shapes a text decoder of Qwen3-Next, Qwen3.5 or Qwen3.5-MoE.
struct Qwen3NextConfig {
  struct Layer {
    bool recurrent = false;  // Gated DeltaNet; otherwise gated attention
    bool sparse = false;     // experts; otherwise a dense MLP
  };
  // How the checkpoint writes what the families share.
  struct Storage {
    float norm_offset = 1;    // Hugging Face files hold norm weights minus one
    bool joint_qkvz = false;  // in_proj_qkvz, interleaved by key head; otherwise in_proj_qkv, z
    bool joint_ba = false;    // in_proj_ba, likewise
    bool unit_axes = true;    // conv1d [channels, 1, width] and shared_expert_gate [1, hidden]
    ValueHeadOrder value_heads = ValueHeadOrder::kGrouped;
  };

  std::string family;  // "qwen3_next", "qwen3_5", "qwen3_5_moe"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t max_positions = 0;
  float rms_norm_eps = 1e-6f;
  bool tied_head = false;

  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;  // the first so many of a head turn
  RopeConfig rope;
  std::optional<YarnConfig> yarn;  // changes the frequencies of `rope`
  GatedDeltaNet::Dimensions delta;

  int64_t mlp_width = 0;    // of dense layers
  int64_t num_experts = 0;  // 0: all layers are dense
  int64_t top_k_experts = 0;
  int64_t expert_width = 0;
  int64_t shared_expert_width = 0;
  RouterSoftmax router_softmax = RouterSoftmax::kChosen;

  std::vector<Layer> layers;
  int64_t num_mtp_layers = 0;  // as far as the config tells; the tensors decide
  Storage storage;

  Rotary rotary() const;

  // From config.json (text_config, if nested, is looked up here). Accepts rope_parameters and the
  // flat rope keys, layer_types and full_attention_interval.
  static Qwen3NextConfig from_json(const ConfigReader& file);
  // From GGUF metadata; `weights` (by canonical names) tell the vocabulary and which layers have
  // experts.
  static Qwen3NextConfig from_gguf(const GgufMetadata& metadata, const WeightMap& weights);
};

// The decoder's blocks of a GGUF file, those of the MTP head not counted.
int64_t num_qwen_gguf_layers(const GgufMetadata& metadata);

}  // namespace braid

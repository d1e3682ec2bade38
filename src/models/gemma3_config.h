#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/config_reader.h"
#include "checkpoint/gguf.h"
#include "checkpoint/weight_map.h"
#include "models/rope_config.h"

namespace braid {

// Everything that shapes a Gemma 3 text decoder.
struct Gemma3Config {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t mlp_width = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_positions = 0;
  int64_t sliding_window = 0;
  float rms_norm_eps = 1e-6f;
  float attention_scale = 0;
  std::optional<float> final_logit_softcap;
  bool tied_head = true;
  // Hugging Face files hold norm weights minus one; GGUF files hold what is multiplied.
  float norm_offset = 1;
  RopeConfig sliding_rope;
  RopeConfig full_rope;
  std::vector<bool> sliding;  // per layer

  // From config.json; accepts the keys of the release (rope_theta, rope_local_base_freq,
  // rope_scaling, sliding_window_pattern) and the newer rope_parameters and layer_types.
  static Gemma3Config from_json(const ConfigReader& file);
  static Gemma3Config from_gguf(const GgufMetadata& metadata, const WeightMap& weights);
};

}  // namespace braid

#pragma once

#include <cstdint>

#include "checkpoint/config_reader.h"
#include "checkpoint/gguf.h"
#include "checkpoint/weight_map.h"
#include "models/gemma4_config.h"

namespace braid {

// Everything that shapes a Gemma 4 assistant (draft model).
struct Gemma4AssistantConfig {
  Gemma4Config decoder;  // its own sizes; no layer has keys and values of its own
  int64_t backbone_hidden_size = 0;
  // The ordered head: logits for the tokens of the best `top_k_centroids` of `num_centroids`
  // groups. 0: a plain head.
  int64_t num_centroids = 0;
  int64_t top_k_centroids = 0;

  // Throw Error naming file and field.
  static Gemma4AssistantConfig from_json(const ConfigReader& file);
  static Gemma4AssistantConfig from_gguf(const GgufMetadata& metadata, const WeightMap& weights);
};

}  // namespace braid

#include "models/gemma4_assistant_config.h"

#include "base/error.h"
#include "models/config_checks.h"

namespace braid {
namespace {

void refuse_unimplemented(const Gemma4Config& decoder, const std::string& origin) {
  const auto refuse = [&](const char* what) {
    throw Error("{}: an assistant with {} is not implemented", origin, what);
  };
  if (decoder.per_layer_width > 0) refuse("per-layer embeddings (hidden_size_per_layer_input)");
  if (decoder.num_experts > 0) refuse("experts (enable_moe_block)");
  if (!decoder.tied_head) refuse("a head of its own (tie_word_embeddings is false)");
}

}  // namespace

Gemma4AssistantConfig Gemma4AssistantConfig::from_json(const ConfigReader& file) {
  Gemma4AssistantConfig config;
  config.decoder = Gemma4Config::from_json(file, Gemma4Config::KeysAndValues::kOfBackbone);
  refuse_unimplemented(config.decoder, file.origin());
  config.backbone_hidden_size = file.find_integer("backbone_hidden_size").value_or(1536);
  require_positive(file.origin(), "backbone_hidden_size", config.backbone_hidden_size);
  if (file.find_boolean("use_ordered_embeddings").value_or(false)) {
    config.num_centroids = file.find_integer("num_centroids").value_or(2048);
    config.top_k_centroids = file.find_integer("centroid_intermediate_top_k").value_or(32);
    if (config.num_centroids <= 0 || config.decoder.vocab_size % config.num_centroids != 0) {
      throw Error("{}: num_centroids is {}, which does not divide the {} tokens of the vocabulary",
                  file.origin(), config.num_centroids, config.decoder.vocab_size);
    }
    if (config.top_k_centroids <= 0 || config.top_k_centroids > config.num_centroids) {
      throw Error("{}: centroid_intermediate_top_k is {}; there are {} centroids", file.origin(),
                  config.top_k_centroids, config.num_centroids);
    }
  }
  return config;
}

Gemma4AssistantConfig Gemma4AssistantConfig::from_gguf(const GgufMetadata& metadata,
                                                       const WeightMap& weights) {
  Gemma4AssistantConfig config;
  config.decoder =
      Gemma4Config::from_gguf(metadata, weights, Gemma4Config::KeysAndValues::kOfBackbone);
  refuse_unimplemented(config.decoder, metadata.origin);
  config.backbone_hidden_size = metadata.integer("gemma4-assistant.embedding_length_out");
  require_positive(metadata.origin, "gemma4-assistant.embedding_length_out",
                   config.backbone_hidden_size);
  return config;
}

}  // namespace braid

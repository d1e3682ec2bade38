#include "models/gemma4_config.h"

#include <fmt/format.h>

#include "base/error.h"
#include "models/gemma_config.h"

namespace braid {
namespace {

constexpr double kFullTheta = 1e6;
constexpr double kSlidingTheta = 1e4;

// Layer i borrows from the last layer before the shared tail that is of its own type.
void set_kv_donors(Gemma4Config& config, int64_t num_shared,
                   Gemma4Config::KeysAndValues keys_and_values, const std::string& origin) {
  const int64_t num_layers = static_cast<int64_t>(config.layers.size());
  if (keys_and_values == Gemma4Config::KeysAndValues::kOfBackbone) {
    if (num_shared == 0 || num_shared == num_layers) return;
    throw Error("{}: num_kv_shared_layers is {}, but all {} layers of a draft model share", origin,
                num_shared, num_layers);
  }
  if (num_shared < 0 || num_shared >= num_layers) {
    throw Error("{}: num_kv_shared_layers is {}, but the model has {} layers", origin, num_shared,
                num_layers);
  }
  const int64_t first_shared = num_layers - num_shared;
  for (int64_t i = first_shared; i < num_layers; ++i) {
    Gemma4Config::Layer& layer = config.layers[i];
    for (int64_t donor = first_shared - 1; donor >= 0 && !layer.kv_donor; --donor) {
      if (config.layers[donor].sliding == layer.sliding) layer.kv_donor = donor;
    }
    if (!layer.kv_donor) {
      throw Error("{}: layer {} shares keys and values, but no earlier layer is of its type",
                  origin, i);
    }
  }
}

void check(const Gemma4Config& config, const std::string& origin) {
  const auto positive = [&](int64_t value, const char* field) {
    require_positive(origin, field, value);
  };
  positive(config.vocab_size, "vocab_size");
  positive(config.hidden_size, "hidden_size");
  positive(config.num_heads, "num_attention_heads");
  positive(config.max_positions, "max_position_embeddings");
  positive(config.sliding_window, "sliding_window");
  if (config.num_experts > 0) {
    positive(config.expert_width, "moe_intermediate_size");
    if (config.top_k_experts <= 0 || config.top_k_experts > config.num_experts) {
      throw Error("{}: top_k_experts is {}; the model has {} experts", origin, config.top_k_experts,
                  config.num_experts);
    }
  }
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const Gemma4Config::Layer& layer = config.layers[i];
    positive(layer.head_dim, "head_dim");
    positive(layer.mlp_width, "intermediate_size");
    positive(layer.num_kv_heads, "num_key_value_heads");
    if (layer.head_dim % 2 != 0)
      throw Error("{}: layer {}: head_dim {} is odd", origin, i, layer.head_dim);
    if (config.num_heads % layer.num_kv_heads != 0) {
      throw Error("{}: layer {}: {} query heads are no multiple of {} key-value heads", origin, i,
                  config.num_heads, layer.num_kv_heads);
    }
  }
}

std::vector<bool> read_sliding_pattern(const ConfigReader& text, int64_t num_layers) {
  if (auto sliding = find_sliding_layers(text, num_layers)) return *sliding;
  std::vector<bool> sliding(num_layers);
  for (int64_t i = 0; i < num_layers; ++i) sliding[i] = (i + 1) % 6 != 0;
  sliding[num_layers - 1] = false;
  return sliding;
}

void refuse_unimplemented(const ConfigReader& text) {
  refuse_unimplemented_gemma(text);
  // "vision" changes the masks of image tokens only.
  if (text.has("use_bidirectional_attention") &&
      text.find_string("use_bidirectional_attention") != "vision") {
    text.fail("use_bidirectional_attention", "only null and \"vision\" are implemented");
  }
}

}  // namespace

Gemma4Config Gemma4Config::from_json(const ConfigReader& file, KeysAndValues keys_and_values) {
  const ConfigReader text = file.find_object("text_config").value_or(file);
  refuse_unimplemented(text);

  Gemma4Config config;
  config.vocab_size = text.integer("vocab_size");
  config.hidden_size = text.integer("hidden_size");
  config.num_heads = text.integer("num_attention_heads");
  config.max_positions = text.find_integer("max_position_embeddings").value_or(131072);
  config.sliding_window = text.find_integer("sliding_window").value_or(512);
  config.rms_norm_eps = static_cast<float>(text.find_number("rms_norm_eps").value_or(1e-6));
  if (const auto cap = text.find_number("final_logit_softcapping")) {
    if (!(*cap > 0)) text.fail("final_logit_softcapping", "must be positive or null");
    config.final_logit_softcap = static_cast<float>(*cap);
  }
  config.tied_head = text.find_boolean("tie_word_embeddings")
                         .value_or(file.find_boolean("tie_word_embeddings").value_or(true));
  config.per_layer_width = text.find_integer("hidden_size_per_layer_input").value_or(256);
  config.per_layer_vocab_size =
      text.find_integer("vocab_size_per_layer_input").value_or(config.vocab_size);
  if (text.find_boolean("enable_moe_block").value_or(false)) {
    config.num_experts = text.integer("num_experts");
    config.top_k_experts = text.integer("top_k_experts");
    config.expert_width = text.integer("moe_intermediate_size");
    if (config.num_experts <= 0) text.fail("num_experts", "must be positive");
  }

  config.sliding_rope.theta = kSlidingTheta;
  config.full_rope = {RopeConfig::Type::kProportional, kFullTheta, 0.25, 1};
  if (const auto rope = text.find_object("rope_parameters")) {
    for (const std::string& key : rope->keys()) {
      if (key != "sliding_attention" && key != "full_attention") {
        rope->fail(key, "expected sliding_attention and full_attention");
      }
    }
    if (const auto entry = rope->find_object("sliding_attention")) {
      config.sliding_rope =
          read_rope_config(*entry, {RopeConfig::Type::kDefault, kSlidingTheta, 1, 1});
    }
    if (const auto entry = rope->find_object("full_attention")) {
      config.full_rope = read_rope_config(*entry, {RopeConfig::Type::kDefault, kFullTheta, 1, 1});
    }
  }

  const int64_t num_layers = text.integer("num_hidden_layers");
  if (!is_layer_count(num_layers)) text.fail("num_hidden_layers", "must be positive");
  const std::vector<bool> sliding = read_sliding_pattern(text, num_layers);
  const int64_t head_dim = text.find_integer("head_dim").value_or(256);
  const int64_t kv_heads = text.integer("num_key_value_heads");
  const bool keys_are_values = text.find_boolean("attention_k_eq_v").value_or(false);
  const int64_t width = text.integer("intermediate_size");
  const int64_t num_shared = text.find_integer("num_kv_shared_layers").value_or(0);
  const bool double_wide = text.find_boolean("use_double_wide_mlp").value_or(false);
  const auto per_layer = text.find_object("per_layer_config");
  const int64_t full_head_dim =
      text.find_integer("global_head_dim").value_or(per_layer ? head_dim : 512);
  const int64_t full_kv_heads =
      keys_are_values ? text.find_integer("num_global_key_value_heads").value_or(kv_heads)
                      : kv_heads;

  for (int64_t i = 0; i < num_layers; ++i) {
    Layer layer;
    layer.sliding = sliding[i];
    layer.head_dim = sliding[i] ? head_dim : full_head_dim;
    layer.num_kv_heads = sliding[i] ? kv_heads : full_kv_heads;
    layer.values_from_keys = keys_are_values && !sliding[i];
    layer.mlp_width = double_wide && i >= num_layers - num_shared ? 2 * width : width;
    if (per_layer) {
      if (const auto entry = per_layer->find_object(std::to_string(i))) {
        for (const std::string& key : entry->keys()) {
          if (key != "head_dim" && key != "num_key_value_heads" && key != "intermediate_size") {
            entry->fail(key, "this per-layer setting is not implemented");
          }
        }
        layer.head_dim = entry->find_integer("head_dim").value_or(layer.head_dim);
        layer.num_kv_heads =
            entry->find_integer("num_key_value_heads").value_or(layer.num_kv_heads);
        layer.mlp_width = entry->find_integer("intermediate_size").value_or(layer.mlp_width);
      }
    }
    config.layers.push_back(layer);
  }
  set_kv_donors(config, num_shared, keys_and_values, file.origin());
  check(config, file.origin());
  return config;
}

Gemma4Config Gemma4Config::from_gguf(const GgufMetadata& metadata, const WeightMap& weights,
                                     KeysAndValues keys_and_values) {
  const std::string prefix =
      keys_and_values == KeysAndValues::kOwn ? "gemma4." : "gemma4-assistant.";
  const auto key = [&](const char* name) { return prefix + name; };
  Gemma4Config config;
  config.hidden_size = metadata.integer(key("embedding_length"));
  config.num_heads = metadata.integer(key("attention.head_count"));
  config.max_positions = metadata.integer(key("context_length"));
  config.sliding_window = metadata.integer(key("attention.sliding_window"));
  config.rms_norm_eps =
      static_cast<float>(metadata.number(key("attention.layer_norm_rms_epsilon")));
  if (const auto cap = metadata.find_number(key("final_logit_softcapping")); cap && *cap > 0) {
    config.final_logit_softcap = static_cast<float>(*cap);
  }
  config.per_layer_width =
      metadata.find_integer(key("embedding_length_per_layer_input")).value_or(0);
  config.num_experts = metadata.find_integer(key("expert_count")).value_or(0);
  if (config.num_experts > 0) {
    config.top_k_experts = metadata.integer(key("expert_used_count"));
    config.expert_width = metadata.integer(key("expert_feed_forward_length"));
  }
  config.sliding_rope.theta =
      metadata.find_number(key("rope.freq_base_swa")).value_or(kSlidingTheta);
  config.full_rope.theta = metadata.number(key("rope.freq_base"));
  config.rope_factors_in_file = true;
  config.layer_scalars_required = false;

  config.vocab_size = require_gguf_embedding(metadata, weights).weight.shape.dim(0);
  config.tied_head = weights.find("lm_head.weight") == nullptr;
  config.per_layer_vocab_size = config.vocab_size;

  const int64_t num_layers = metadata.integer(key("block_count"));
  if (!is_layer_count(num_layers)) metadata.fail(key("block_count"), "must be positive");
  const auto kv_heads =
      metadata.find_integers_per_layer(key("attention.head_count_kv"), num_layers);
  const auto widths = metadata.find_integers_per_layer(key("feed_forward_length"), num_layers);
  const auto sliding =
      metadata.find_booleans_per_layer(key("attention.sliding_window_pattern"), num_layers);
  if (!kv_heads) metadata.fail(key("attention.head_count_kv"), "is missing");
  if (!widths) metadata.fail(key("feed_forward_length"), "is missing");
  if (!sliding) metadata.fail(key("attention.sliding_window_pattern"), "is missing");
  const int64_t full_head_dim = metadata.integer(key("attention.key_length"));
  const int64_t sliding_head_dim =
      metadata.find_integer(key("attention.key_length_swa")).value_or(full_head_dim);
  const int64_t num_shared = metadata.find_integer(key("attention.shared_kv_layers")).value_or(0);
  for (int64_t i = 0; i < num_layers; ++i) {
    Layer layer;
    layer.sliding = (*sliding)[i];
    layer.head_dim = layer.sliding ? sliding_head_dim : full_head_dim;
    layer.num_kv_heads = (*kv_heads)[i];
    layer.mlp_width = (*widths)[i];
    layer.values_from_keys =
        keys_and_values == KeysAndValues::kOwn && i < num_layers - num_shared &&
        weights.find(fmt::format("layers.{}.self_attn.v_proj.weight", i)) == nullptr;
    config.layers.push_back(layer);
  }
  set_kv_donors(config, num_shared, keys_and_values, metadata.origin);
  check(config, metadata.origin);
  return config;
}

}  // namespace braid

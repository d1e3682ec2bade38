#include "models/gemma3_config.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "models/gemma_config.h"

namespace braid {
namespace {

constexpr double kFullTheta = 1e6;
constexpr double kSlidingTheta = 1e4;
constexpr int64_t kPatternPeriod = 6;  // the last layer of each period is full

void check(const Gemma3Config& config, const std::string& origin) {
  const auto positive = [&](int64_t value, const char* field) {
    require_positive(origin, field, value);
  };
  positive(config.vocab_size, "vocab_size");
  positive(config.hidden_size, "hidden_size");
  positive(config.mlp_width, "intermediate_size");
  positive(config.num_heads, "num_attention_heads");
  positive(config.num_kv_heads, "num_key_value_heads");
  positive(config.head_dim, "head_dim");
  positive(config.max_positions, "max_position_embeddings");
  positive(config.sliding_window, "sliding_window");
  if (config.head_dim % 2 != 0) throw Error("{}: head_dim {} is odd", origin, config.head_dim);
  if (config.num_heads % config.num_kv_heads != 0) {
    throw Error("{}: {} query heads are no multiple of {} key-value heads", origin,
                config.num_heads, config.num_kv_heads);
  }
}

std::vector<bool> periodic_pattern(int64_t num_layers, int64_t period) {
  std::vector<bool> sliding(num_layers);
  for (int64_t i = 0; i < num_layers; ++i) sliding[i] = (i + 1) % period != 0;
  return sliding;
}

std::vector<bool> read_pattern(const ConfigReader& text, int64_t num_layers) {
  if (auto sliding = find_sliding_layers(text, num_layers)) return *sliding;
  for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"}) {
    if (const auto period = text.find_integer(key)) {
      if (*period <= 0) text.fail(key, "must be positive");
      return periodic_pattern(num_layers, *period);
    }
  }
  return periodic_pattern(num_layers, kPatternPeriod);
}

// Files of the release have flat keys, newer ones rope_parameters, mixed ones both: the entry wins.
void read_ropes(const ConfigReader& text, Gemma3Config& config) {
  config.full_rope.theta = text.find_number("rope_theta").value_or(kFullTheta);
  config.sliding_rope.theta = text.find_number("rope_local_base_freq").value_or(kSlidingTheta);
  if (const auto scaling = text.find_object("rope_scaling")) {
    config.full_rope = read_rope_config(*scaling, config.full_rope);
  }
  const auto parameters = text.find_object("rope_parameters");
  if (!parameters) return;
  for (const std::string& key : parameters->keys()) {
    if (key != "sliding_attention" && key != "full_attention") {
      parameters->fail(key, "expected sliding_attention and full_attention");
    }
  }
  if (const auto entry = parameters->find_object("sliding_attention")) {
    config.sliding_rope = read_rope_config(*entry, config.sliding_rope);
  }
  if (const auto entry = parameters->find_object("full_attention")) {
    config.full_rope = read_rope_config(*entry, config.full_rope);
  }
}

void refuse_unimplemented(const ConfigReader& text) {
  refuse_unimplemented_gemma(text);
  if (text.has("attn_logit_softcapping")) {
    text.fail("attn_logit_softcapping", "is not implemented (must be null)");
  }
  if (text.find_boolean("use_bidirectional_attention").value_or(false)) {
    text.fail("use_bidirectional_attention", "is not implemented (must be false)");
  }
}

}  // namespace

Gemma3Config Gemma3Config::from_json(const ConfigReader& file) {
  const ConfigReader text = file.find_object("text_config").value_or(file);
  refuse_unimplemented(text);
  Gemma3Config config;
  config.vocab_size = text.find_integer("vocab_size").value_or(262208);
  config.hidden_size = text.integer("hidden_size");
  config.mlp_width = text.integer("intermediate_size");
  config.num_heads = text.find_integer("num_attention_heads").value_or(8);
  config.num_kv_heads = text.find_integer("num_key_value_heads").value_or(4);
  config.head_dim = text.find_integer("head_dim").value_or(256);
  config.max_positions = text.find_integer("max_position_embeddings").value_or(131072);
  config.sliding_window = text.find_integer("sliding_window").value_or(4096);
  config.rms_norm_eps = static_cast<float>(text.find_number("rms_norm_eps").value_or(1e-6));
  const double query_scalar = text.find_number("query_pre_attn_scalar").value_or(256);
  if (!(query_scalar > 0)) text.fail("query_pre_attn_scalar", "must be positive");
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(query_scalar));
  if (const auto cap = text.find_number("final_logit_softcapping")) {
    if (!(*cap > 0)) text.fail("final_logit_softcapping", "must be positive or null");
    config.final_logit_softcap = static_cast<float>(*cap);
  }
  config.tied_head = text.find_boolean("tie_word_embeddings")
                         .value_or(file.find_boolean("tie_word_embeddings").value_or(true));
  const int64_t num_layers = text.integer("num_hidden_layers");
  if (!is_layer_count(num_layers)) text.fail("num_hidden_layers", "must be positive");
  config.sliding = read_pattern(text, num_layers);
  read_ropes(text, config);
  check(config, file.origin());
  return config;
}

Gemma3Config Gemma3Config::from_gguf(const GgufMetadata& metadata, const WeightMap& weights) {
  const auto key = [](const char* name) { return std::string("gemma3.") + name; };
  Gemma3Config config;
  config.norm_offset = 0;
  config.hidden_size = metadata.integer(key("embedding_length"));
  config.mlp_width = metadata.integer(key("feed_forward_length"));
  config.num_heads = metadata.integer(key("attention.head_count"));
  config.num_kv_heads =
      metadata.find_integer(key("attention.head_count_kv")).value_or(config.num_heads);
  config.head_dim = metadata.integer(key("attention.key_length"));
  config.max_positions = metadata.integer(key("context_length"));
  config.sliding_window = metadata.integer(key("attention.sliding_window"));
  config.rms_norm_eps =
      static_cast<float>(metadata.number(key("attention.layer_norm_rms_epsilon")));
  if (const auto cap = metadata.find_number(key("final_logit_softcapping")); cap && *cap > 0) {
    config.final_logit_softcap = static_cast<float>(*cap);
  }
  const int64_t num_layers = metadata.integer(key("block_count"));
  if (!is_layer_count(num_layers)) metadata.fail(key("block_count"), "must be positive");
  config.sliding =
      metadata.find_booleans_per_layer(key("attention.sliding_window_pattern"), num_layers)
          .value_or(periodic_pattern(num_layers, kPatternPeriod));

  // The file does not state the attention scale; the 27B model (62 layers) alone divides by
  // hidden / heads instead of the head size.
  constexpr int64_t kLayersOf27B = 62;
  const double query_scalar = num_layers == kLayersOf27B
                                  ? static_cast<double>(config.hidden_size) / config.num_heads
                                  : static_cast<double>(config.head_dim);
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(query_scalar));

  config.full_rope.theta = metadata.find_number(key("rope.freq_base")).value_or(kFullTheta);
  config.sliding_rope.theta =
      metadata.find_number(key("rope.freq_base_swa")).value_or(kSlidingTheta);
  const std::string scaling = metadata.find_string(key("rope.scaling.type")).value_or("none");
  if (scaling == "linear") {
    config.full_rope.type = RopeConfig::Type::kLinear;
    config.full_rope.factor = metadata.number(key("rope.scaling.factor"));
    if (!(config.full_rope.factor > 0))
      metadata.fail(key("rope.scaling.factor"), "must be positive");
  } else if (scaling != "none") {
    metadata.fail(key("rope.scaling.type"), "'" + scaling + "' is not implemented (none, linear)");
  }

  config.vocab_size = require_gguf_embedding(metadata, weights).weight.shape.dim(0);
  config.tied_head = weights.find("lm_head.weight") == nullptr;
  check(config, metadata.origin);
  return config;
}

}  // namespace braid

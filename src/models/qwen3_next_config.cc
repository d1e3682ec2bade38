#include "models/qwen3_next_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "models/config_checks.h"

namespace braid {
namespace {

constexpr int64_t kDefaultInterval = 4;
constexpr double kDefaultRotaryFactor = 0.25;

void check(const Qwen3NextConfig& config, const std::string& origin) {
  const auto positive = [&](int64_t value, const char* field) {
    require_positive(origin, field, value);
  };
  positive(config.vocab_size, "vocab_size");
  positive(config.hidden_size, "hidden_size");
  positive(config.max_positions, "max_position_embeddings");
  positive(config.num_heads, "num_attention_heads");
  positive(config.num_kv_heads, "num_key_value_heads");
  positive(config.head_dim, "head_dim");
  if (config.num_heads % config.num_kv_heads != 0) {
    throw Error("{}: {} query heads are no multiple of {} key-value heads", origin,
                config.num_heads, config.num_kv_heads);
  }
  if (config.rotary_dim <= 0 || config.rotary_dim > config.head_dim || config.rotary_dim % 2 != 0) {
    throw Error("{}: {} rotary dimensions of a head of {}; must be even, above 0 and at most {}",
                origin, config.rotary_dim, config.head_dim, config.head_dim);
  }
  const GatedDeltaNet::Dimensions& delta = config.delta;
  positive(delta.key_heads, "linear_num_key_heads");
  positive(delta.value_heads, "linear_num_value_heads");
  positive(delta.key_dim, "linear_key_head_dim");
  positive(delta.value_dim, "linear_value_head_dim");
  if (delta.value_heads % delta.key_heads != 0) {
    throw Error("{}: {} value heads are no multiple of {} key heads (linear_num_*_heads)", origin,
                delta.value_heads, delta.key_heads);
  }
  if (delta.conv_width < 2) {
    throw Error("{}: linear_conv_kernel_dim is {}; it must be at least 2", origin,
                delta.conv_width);
  }
  const bool any_dense =
      std::any_of(config.layers.begin(), config.layers.end(), [](auto& l) { return !l.sparse; });
  if (any_dense) positive(config.mlp_width, "intermediate_size");
  if (config.num_experts > 0) {
    positive(config.expert_width, "moe_intermediate_size");
    positive(config.shared_expert_width, "shared_expert_intermediate_size");
    if (config.top_k_experts <= 0 || config.top_k_experts > config.num_experts) {
      throw Error("{}: num_experts_per_tok is {}; the model has {} experts", origin,
                  config.top_k_experts, config.num_experts);
    }
  }
  if (config.num_mtp_layers < 0 || config.num_mtp_layers > 1) {
    throw Error(
        "{}: {} MTP layers (mtp_num_hidden_layers, nextn_predict_layers); only 0 and 1 are "
        "implemented",
        origin, config.num_mtp_layers);
  }
}

void refuse_unimplemented(const ConfigReader& text) {
  if (text.find_boolean("attention_bias").value_or(false)) {
    text.fail("attention_bias", "biases are not implemented");
  }
  if (!text.find_boolean("attn_output_gate").value_or(true)) {
    text.fail("attn_output_gate", "attention without an output gate is not implemented");
  }
  if (text.find_boolean("use_sliding_window").value_or(false)) {
    text.fail("use_sliding_window", "sliding windows are not implemented");
  }
  const std::string activation = text.find_string("hidden_act").value_or("silu");
  if (activation != "silu") {
    text.fail("hidden_act", "'" + activation + "' is not implemented (silu)");
  }
  // Of the norm after the delta rule; attention is always gated by a sigmoid.
  const std::string gate = text.find_string("output_gate_type").value_or("swish");
  if (gate != "swish" && gate != "silu") {
    text.fail("output_gate_type", "'" + gate + "' is not implemented (swish)");
  }
}

// Which layers are recurrent, of layer_types.
std::vector<bool> parse_layer_types(const ConfigReader& text, const std::vector<std::string>& types,
                                    int64_t num_layers) {
  if (static_cast<int64_t>(types.size()) != num_layers) {
    text.fail("layer_types", fmt::format("has {} entries for {} layers", types.size(), num_layers));
  }
  std::vector<bool> recurrent(types.size());
  for (size_t i = 0; i < types.size(); ++i) {
    recurrent[i] = types[i] == "linear_attention" || types[i] == "mamba";
    if (!recurrent[i] && types[i] != "full_attention" && types[i] != "attention") {
      text.fail("layer_types", fmt::format("entry {}: unknown type '{}'", i, types[i]));
    }
  }
  return recurrent;
}

std::vector<bool> periodic_layers(int64_t num_layers, int64_t interval) {
  std::vector<bool> recurrent(num_layers);
  for (int64_t i = 0; i < num_layers; ++i) recurrent[i] = (i + 1) % interval != 0;
  return recurrent;
}

std::vector<bool> read_recurrent_layers(const ConfigReader& text, int64_t num_layers) {
  if (const auto types = text.find_strings("layer_types")) {
    return parse_layer_types(text, *types, num_layers);
  }
  const int64_t interval = text.integer("full_attention_interval");
  if (interval <= 0) text.fail("full_attention_interval", "must be positive");
  return periodic_layers(num_layers, interval);
}

// Experts are in every decoder_sparse_step-th layer that mlp_only_layers does not name.
std::vector<bool> read_sparse_layers(const ConfigReader& text, int64_t num_layers) {
  const int64_t step = text.find_integer("decoder_sparse_step").value_or(1);
  if (step <= 0) text.fail("decoder_sparse_step", "must be positive");
  std::vector<bool> sparse = periodic_layers(num_layers, step);
  sparse.flip();
  if (const auto dense = text.find_integers("mlp_only_layers")) {
    for (const int64_t layer : *dense) {
      if (layer < 0) text.fail("mlp_only_layers", fmt::format("there is no layer {}", layer));
      if (layer < num_layers) sparse[layer] = false;
    }
  }
  return sparse;
}

void read_rope(const ConfigReader& text, Qwen3NextConfig& config) {
  const auto parameters = text.find_object("rope_parameters");
  const auto scaling = parameters ? parameters : text.find_object("rope_scaling");
  double factor = text.find_number("partial_rotary_factor").value_or(kDefaultRotaryFactor);
  std::optional<double> theta = text.find_number("rope_theta");
  if (scaling) {
    for (const std::string& key : scaling->keys()) {
      // The sections of M-RoPE share out the frequencies between time, height and width, which are
      // all the same number for text.
      const bool known = key == "rope_type" || key == "type" || key == "rope_theta" ||
                         key == "partial_rotary_factor" || key == "mrope_section" ||
                         key == "mrope_interleaved" || is_yarn_key(key);
      if (!known && scaling->has(key)) {
        scaling->fail(key, "this rotary setting is not implemented");
      }
    }
    const std::string type = scaling->find_string("rope_type")
                                 .value_or(scaling->find_string("type").value_or("default"));
    if (type == "yarn") {
      config.yarn = read_yarn_config(*scaling);
    } else if (type != "default") {
      scaling->fail("rope_type", "'" + type + "' is not implemented (default, yarn)");
    } else if (scaling->has("factor")) {
      scaling->fail("factor", "has no meaning for rope_type 'default'");
    }
    if (const auto value = scaling->find_number("rope_theta")) theta = value;
    factor = scaling->find_number("partial_rotary_factor").value_or(factor);
  }
  config.rope.theta = theta ? *theta : text.number("rope_theta");
  if (!(config.rope.theta > 0)) text.fail("rope_theta", "must be positive");
  if (!(factor > 0 && factor <= 1)) {
    text.fail("partial_rotary_factor", "must be above 0 and at most 1");
  }
  config.rotary_dim = static_cast<int64_t>(static_cast<double>(config.head_dim) * factor);
}

}  // namespace

Qwen3NextConfig Qwen3NextConfig::from_json(const ConfigReader& file) {
  const ConfigReader text = file.find_object("text_config").value_or(file);
  refuse_unimplemented(text);
  Qwen3NextConfig config;
  config.vocab_size = text.integer("vocab_size");
  config.hidden_size = text.integer("hidden_size");
  config.max_positions = text.integer("max_position_embeddings");
  config.rms_norm_eps = static_cast<float>(text.number("rms_norm_eps"));
  config.tied_head = file.find_boolean("tie_word_embeddings")
                         .value_or(text.find_boolean("tie_word_embeddings").value_or(false));
  config.num_heads = text.integer("num_attention_heads");
  config.num_kv_heads = text.integer("num_key_value_heads");
  config.head_dim = text.integer("head_dim");
  config.delta = {
      .key_heads = text.integer("linear_num_key_heads"),
      .value_heads = text.integer("linear_num_value_heads"),
      .key_dim = text.integer("linear_key_head_dim"),
      .value_dim = text.integer("linear_value_head_dim"),
      .conv_width = text.integer("linear_conv_kernel_dim"),
  };
  config.mlp_width = text.find_integer("intermediate_size").value_or(0);
  config.num_experts = text.find_integer("num_experts").value_or(0);
  if (config.num_experts < 0) text.fail("num_experts", "must not be negative");
  if (config.num_experts > 0) {
    config.top_k_experts = text.integer("num_experts_per_tok");
    config.expert_width = text.integer("moe_intermediate_size");
    config.shared_expert_width = text.integer("shared_expert_intermediate_size");
    config.router_softmax = text.find_boolean("norm_topk_prob").value_or(true)
                                ? RouterSoftmax::kChosen
                                : RouterSoftmax::kAll;
  }
  config.num_mtp_layers = text.find_integer("mtp_num_hidden_layers").value_or(0);
  read_rope(text, config);

  const int64_t num_layers = text.integer("num_hidden_layers");
  if (!is_layer_count(num_layers)) text.fail("num_hidden_layers", "must be positive");
  const std::vector<bool> recurrent = read_recurrent_layers(text, num_layers);
  const std::vector<bool> sparse = config.num_experts > 0 ? read_sparse_layers(text, num_layers)
                                                          : std::vector<bool>(num_layers, false);
  for (int64_t i = 0; i < num_layers; ++i) config.layers.push_back({recurrent[i], sparse[i]});

  const std::string type =
      text.find_string("model_type").value_or(file.find_string("model_type").value_or(""));
  if (type == "qwen3_next") {
    config.family = type;
    config.storage.joint_qkvz = true;
    config.storage.joint_ba = true;
  } else {
    config.family = config.num_experts > 0 ? "qwen3_5_moe" : "qwen3_5";
  }
  check(config, file.origin());
  return config;
}

int64_t num_qwen_gguf_layers(const GgufMetadata& metadata) {
  const std::string architecture = metadata.string("general.architecture");
  const int64_t num_blocks = metadata.integer(architecture + ".block_count");
  const int64_t num_mtp = metadata.find_integer(architecture + ".nextn_predict_layers").value_or(0);
  if (!is_layer_count(num_blocks)) metadata.fail(architecture + ".block_count", "must be positive");
  if (num_mtp < 0 || num_mtp >= num_blocks) {
    metadata.fail(architecture + ".nextn_predict_layers",
                  fmt::format("is {} of {} blocks", num_mtp, num_blocks));
  }
  return num_blocks - num_mtp;
}

Qwen3NextConfig Qwen3NextConfig::from_gguf(const GgufMetadata& metadata, const WeightMap& weights) {
  const std::string architecture = metadata.string("general.architecture");
  const auto key = [&](const char* name) { return architecture + "." + name; };
  Qwen3NextConfig config;
  config.hidden_size = metadata.integer(key("embedding_length"));
  config.max_positions = metadata.integer(key("context_length"));
  config.rms_norm_eps =
      static_cast<float>(metadata.number(key("attention.layer_norm_rms_epsilon")));
  config.num_heads = metadata.integer(key("attention.head_count"));
  config.num_kv_heads = metadata.integer(key("attention.head_count_kv"));
  config.head_dim = metadata.integer(key("attention.key_length"));
  config.rotary_dim = metadata.integer(key("rope.dimension_count"));
  config.rope.theta = metadata.number(key("rope.freq_base"));
  if (!(config.rope.theta > 0)) metadata.fail(key("rope.freq_base"), "must be positive");
  const std::string scaling = metadata.find_string(key("rope.scaling.type")).value_or("none");
  if (scaling == "yarn") {
    YarnConfig yarn;
    yarn.factor = metadata.number(key("rope.scaling.factor"));
    yarn.original_positions = metadata.number(key("rope.scaling.original_context_length"));
    yarn.beta_fast =
        metadata.find_number(key("rope.scaling.yarn_beta_fast")).value_or(yarn.beta_fast);
    yarn.beta_slow =
        metadata.find_number(key("rope.scaling.yarn_beta_slow")).value_or(yarn.beta_slow);
    yarn.attention_factor = default_yarn_attention_factor(yarn.factor);
    if (!(yarn.factor > 0)) metadata.fail(key("rope.scaling.factor"), "must be positive");
    if (!(yarn.original_positions > 0)) {
      metadata.fail(key("rope.scaling.original_context_length"), "must be positive");
    }
    config.yarn = yarn;
  } else if (scaling != "none") {
    metadata.fail(key("rope.scaling.type"), "'" + scaling + "' is not implemented (none, yarn)");
  }

  config.delta.key_heads = metadata.integer(key("ssm.group_count"));
  config.delta.value_heads = metadata.integer(key("ssm.time_step_rank"));
  config.delta.key_dim = metadata.integer(key("ssm.state_size"));
  config.delta.conv_width = metadata.integer(key("ssm.conv_kernel"));
  const int64_t value_width = metadata.integer(key("ssm.inner_size"));
  if (config.delta.value_heads <= 0 || value_width % config.delta.value_heads != 0) {
    metadata.fail(key("ssm.inner_size"), fmt::format("{} is no multiple of {} value heads",
                                                     value_width, config.delta.value_heads));
  }
  config.delta.value_dim = value_width / config.delta.value_heads;

  config.mlp_width = metadata.find_integer(key("feed_forward_length")).value_or(0);
  config.num_experts = metadata.find_integer(key("expert_count")).value_or(0);
  if (config.num_experts > 0) {
    config.top_k_experts = metadata.integer(key("expert_used_count"));
    config.expert_width = metadata.integer(key("expert_feed_forward_length"));
    config.shared_expert_width = metadata.integer(key("expert_shared_feed_forward_length"));
    config.router_softmax = metadata.find_boolean(key("expert_weights_norm")).value_or(true)
                                ? RouterSoftmax::kChosen
                                : RouterSoftmax::kAll;
  }

  const int64_t num_layers = num_qwen_gguf_layers(metadata);
  config.num_mtp_layers = metadata.integer(key("block_count")) - num_layers;
  const int64_t interval =
      metadata.find_integer(key("full_attention_interval")).value_or(kDefaultInterval);
  if (interval <= 0) metadata.fail(key("full_attention_interval"), "must be positive");
  const std::vector<bool> recurrent =
      metadata
          .find_booleans_per_layer(key("attention.recurrent_layers"),
                                   num_layers + config.num_mtp_layers)
          .value_or(periodic_layers(num_layers, interval));
  for (int64_t i = 0; i < num_layers; ++i) {
    const std::string router = fmt::format("layers.{}.mlp.gate.weight", i);
    config.layers.push_back(
        {recurrent[i], config.num_experts > 0 && weights.find(router) != nullptr});
  }

  config.vocab_size = require_gguf_embedding(metadata, weights).weight.shape.dim(0);
  config.tied_head = weights.find("lm_head.weight") == nullptr;

  config.storage = {.norm_offset = 0, .joint_qkvz = false, .joint_ba = false, .unit_axes = false};
  if (architecture == "qwen3next") {
    config.family = "qwen3_next";
    config.storage.joint_ba = true;
  } else {
    config.family = config.num_experts > 0 ? "qwen3_5_moe" : "qwen3_5";
    config.storage.value_heads = ValueHeadOrder::kTiled;
  }
  check(config, metadata.origin);
  return config;
}

Rotary Qwen3NextConfig::rotary() const {
  if (!yarn) return Rotary(rope.frequencies(rotary_dim), rotary_dim / 2);
  return Rotary(yarn->frequencies(rope.theta, rotary_dim), rotary_dim / 2,
                static_cast<float>(yarn->attention_factor));
}

}  // namespace braid

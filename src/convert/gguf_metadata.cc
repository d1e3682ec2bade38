#include "convert/gguf_metadata.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "convert/gguf_family.h"
#include "convert/gguf_tokenizer.h"
#include "models/gemma3_config.h"
#include "models/gemma4_config.h"
#include "models/qwen3_next_config.h"

namespace braid {
namespace {

constexpr int64_t kQuantisationVersion = 2;
constexpr int64_t kGemma3Period = 6, kLayersOfGemma3With27B = 62;
constexpr int64_t kDefaultInterval = 4;

// Keys below the architecture's name.
class Section {
 public:
  Section(GgufMetadataWriter& out, std::string architecture)
      : out_(out), prefix_(std::move(architecture) + ".") {}

  void integer(const char* key, int64_t value) { out_.add_integer(prefix_ + key, value); }
  void number(const char* key, double value) { out_.add_number(prefix_ + key, value); }
  void boolean(const char* key, bool value) { out_.add_boolean(prefix_ + key, value); }
  void string(const char* key, std::string_view value) { out_.add_string(prefix_ + key, value); }
  void booleans(const char* key, const std::vector<bool>& values) {
    out_.add_booleans(prefix_ + key, values);
  }
  void integers(const char* key, const std::vector<int64_t>& values) {
    const std::vector<int32_t> narrow(values.begin(), values.end());
    out_.add_integers(prefix_ + key, narrow);
  }
  // One number where all layers agree.
  void per_layer(const char* key, const std::vector<int64_t>& values) {
    const bool same = std::all_of(values.begin(), values.end(),
                                  [&](int64_t value) { return value == values.front(); });
    same ? integer(key, values.front()) : integers(key, values);
  }

 private:
  GgufMetadataWriter& out_;
  std::string prefix_;
};

void add_common(Section& out, int64_t layers, int64_t context, int64_t hidden, int64_t heads,
                float epsilon, int64_t vocabulary) {
  out.integer("block_count", layers);
  out.integer("context_length", context);
  out.integer("embedding_length", hidden);
  out.integer("attention.head_count", heads);
  out.number("attention.layer_norm_rms_epsilon", epsilon);
  out.integer("vocab_size", vocabulary);
}

void refuse(const ModelFiles& files, std::string_view what) {
  throw Error("{}/config.json: GGUF files cannot say {}", files.origin(), what);
}

void add_gemma3(const ModelFiles& files, Section& out) {
  const Gemma3Config config = Gemma3Config::from_json(files.config());
  const auto layers = static_cast<int64_t>(config.sliding.size());
  add_common(out, layers, config.max_positions, config.hidden_size, config.num_heads,
             config.rms_norm_eps, config.vocab_size);
  out.integer("feed_forward_length", config.mlp_width);
  out.integer("attention.head_count_kv", config.num_kv_heads);
  out.integer("attention.key_length", config.head_dim);
  out.integer("attention.value_length", config.head_dim);
  out.integer("attention.sliding_window", config.sliding_window);
  out.number("rope.freq_base", config.full_rope.theta);
  out.number("rope.freq_base_swa", config.sliding_rope.theta);
  if (config.full_rope.type == RopeConfig::Type::kLinear) {
    out.string("rope.scaling.type", "linear");
    out.number("rope.scaling.factor", config.full_rope.factor);
  } else if (config.full_rope.type != RopeConfig::Type::kDefault) {
    refuse(files, "this kind of rotary scaling for Gemma 3");
  }
  if (config.sliding_rope.type != RopeConfig::Type::kDefault) {
    refuse(files, "how sliding layers scale their rotation");
  }
  if (config.final_logit_softcap) {
    out.number("final_logit_softcapping", *config.final_logit_softcap);
  }
  bool usual = true;
  for (int64_t i = 0; i < layers; ++i) {
    usual = usual && config.sliding[i] == ((i + 1) % kGemma3Period != 0);
  }
  if (!usual) out.booleans("attention.sliding_window_pattern", config.sliding);
  // Readers take this from the number of layers.
  const double scalar = layers == kLayersOfGemma3With27B
                            ? static_cast<double>(config.hidden_size) / config.num_heads
                            : static_cast<double>(config.head_dim);
  if (std::abs(config.attention_scale * std::sqrt(scalar) - 1) > 1e-6) {
    refuse(files, "a query_pre_attn_scalar other than head_dim");
  }
}

void add_gemma4(const ModelFiles& files, Section& out) {
  const Gemma4Config config = Gemma4Config::from_json(files.config());
  const auto num_layers = static_cast<int64_t>(config.layers.size());
  add_common(out, num_layers, config.max_positions, config.hidden_size, config.num_heads,
             config.rms_norm_eps, config.vocab_size);
  std::vector<int64_t> widths, kv_heads;
  std::vector<bool> sliding;
  int64_t full_dim = 0, sliding_dim = 0, num_shared = 0;
  for (const Gemma4Config::Layer& layer : config.layers) {
    widths.push_back(layer.mlp_width);
    kv_heads.push_back(layer.num_kv_heads);
    sliding.push_back(layer.sliding);
    int64_t& dim = layer.sliding ? sliding_dim : full_dim;
    if (dim != 0 && dim != layer.head_dim) {
      refuse(files, "head sizes that differ among layers of a kind");
    }
    dim = layer.head_dim;
    if (layer.kv_donor) ++num_shared;
  }
  if (full_dim == 0) full_dim = sliding_dim;
  if (sliding_dim == 0) sliding_dim = full_dim;
  out.per_layer("feed_forward_length", widths);
  out.per_layer("attention.head_count_kv", kv_heads);
  out.integer("attention.key_length", full_dim);
  out.integer("attention.value_length", full_dim);
  out.integer("attention.key_length_swa", sliding_dim);
  out.integer("attention.value_length_swa", sliding_dim);
  out.integer("attention.sliding_window", config.sliding_window);
  out.booleans("attention.sliding_window_pattern", sliding);
  out.integer("attention.shared_kv_layers", num_shared);
  out.integer("embedding_length_per_layer_input", config.per_layer_width);
  if (config.per_layer_width > 0 && config.per_layer_vocab_size != config.vocab_size) {
    refuse(files, "a vocab_size_per_layer_input other than vocab_size");
  }
  out.number("rope.freq_base", config.full_rope.theta);
  out.number("rope.freq_base_swa", config.sliding_rope.theta);
  out.integer("rope.dimension_count", full_dim);
  out.integer("rope.dimension_count_swa", sliding_dim);
  if (config.sliding_rope.type != RopeConfig::Type::kDefault) {
    refuse(files, "how sliding layers scale their rotation");
  }
  if (config.final_logit_softcap) {
    out.number("final_logit_softcapping", *config.final_logit_softcap);
  }
  if (config.num_experts > 0) {
    out.integer("expert_count", config.num_experts);
    out.integer("expert_used_count", config.top_k_experts);
    out.integer("expert_feed_forward_length", config.expert_width);
  }
}

void add_recurrent_layers(const Qwen3NextConfig& config, int64_t num_mtp, Section& out) {
  const auto num_layers = static_cast<int64_t>(config.layers.size());
  std::vector<bool> recurrent;
  for (const Qwen3NextConfig::Layer& layer : config.layers) recurrent.push_back(layer.recurrent);
  const auto first_full = std::find(recurrent.begin(), recurrent.end(), false);
  const int64_t interval =
      first_full == recurrent.end() ? kDefaultInterval : first_full - recurrent.begin() + 1;
  bool periodic = true;
  for (int64_t i = 0; i < num_layers; ++i) {
    periodic = periodic && recurrent[i] == ((i + 1) % interval != 0);
  }
  if (periodic) {
    out.integer("full_attention_interval", interval);
    return;
  }
  recurrent.resize(static_cast<size_t>(num_layers + num_mtp), false);
  out.booleans("attention.recurrent_layers", recurrent);
}

void add_qwen(const ModelFiles& files, const std::string& architecture, Section& out) {
  const Qwen3NextConfig config = Qwen3NextConfig::from_json(files.config());
  const int64_t num_mtp = files.weights().find("mtp.fc.weight") != nullptr ? 1 : 0;
  add_common(out, static_cast<int64_t>(config.layers.size()) + num_mtp, config.max_positions,
             config.hidden_size, config.num_heads, config.rms_norm_eps, config.vocab_size);
  out.integer("attention.head_count_kv", config.num_kv_heads);
  out.integer("attention.key_length", config.head_dim);
  out.integer("attention.value_length", config.head_dim);
  out.number("rope.freq_base", config.rope.theta);
  out.integer("rope.dimension_count", config.rotary_dim);
  if (architecture != "qwen3next") {
    // Of the rotating pairs: those for time, height and width, all the same for text.
    std::vector<int64_t> sections = {config.rotary_dim / 2, 0, 0};
    if (const auto rope = files.text_config().find_object("rope_parameters")) {
      if (const auto given = rope->find_integers("mrope_section")) sections = *given;
    }
    sections.resize(4);
    out.integers("rope.dimension_sections", sections);
  }
  if (config.yarn) {
    if (config.yarn->attention_factor != default_yarn_attention_factor(config.yarn->factor) ||
        !config.yarn->truncate) {
      refuse(files, "YaRN with its own attention factor or without truncation");
    }
    out.string("rope.scaling.type", "yarn");
    out.number("rope.scaling.factor", config.yarn->factor);
    out.integer("rope.scaling.original_context_length",
                static_cast<int64_t>(config.yarn->original_positions));
    out.number("rope.scaling.yarn_beta_fast", config.yarn->beta_fast);
    out.number("rope.scaling.yarn_beta_slow", config.yarn->beta_slow);
  }
  if (config.mlp_width > 0) out.integer("feed_forward_length", config.mlp_width);
  if (config.num_experts > 0) {
    out.integer("expert_count", config.num_experts);
    out.integer("expert_used_count", config.top_k_experts);
    out.integer("expert_feed_forward_length", config.expert_width);
    out.integer("expert_shared_feed_forward_length", config.shared_expert_width);
    if (config.router_softmax == RouterSoftmax::kAll) out.boolean("expert_weights_norm", false);
  }
  out.integer("ssm.conv_kernel", config.delta.conv_width);
  out.integer("ssm.state_size", config.delta.key_dim);
  out.integer("ssm.group_count", config.delta.key_heads);
  out.integer("ssm.time_step_rank", config.delta.value_heads);
  out.integer("ssm.inner_size", config.delta.value_heads * config.delta.value_dim);
  add_recurrent_layers(config, num_mtp, out);
  if (num_mtp > 0) out.integer("nextn_predict_layers", num_mtp);
}

int64_t vocabulary_of(const ModelFiles& files) {
  const StoredTensor* embedding = files.weights().find("embed_tokens.weight");
  if (embedding == nullptr) throw Error("{}: embed_tokens.weight is missing", files.origin());
  return embedding->weight.shape.dim(0);
}

void add_sampling(const GenerationDefaults& defaults, GgufMetadataWriter& out) {
  if (defaults.temperature) out.add_number("general.sampling.temp", *defaults.temperature);
  if (defaults.top_k) out.add_integer("general.sampling.top_k", *defaults.top_k);
  if (defaults.top_p) out.add_number("general.sampling.top_p", *defaults.top_p);
  if (defaults.min_p) out.add_number("general.sampling.min_p", *defaults.min_p);
  if (defaults.repetition_penalty) {
    out.add_number("general.sampling.penalty_repeat", *defaults.repetition_penalty);
  }
}

// Of how the tensors of that file lie.
bool is_about_storage(std::string_view key) {
  return key == "general.file_type" || key == "general.quantization_version" ||
         key == "general.alignment" || key.starts_with("split.") || key.starts_with("quantize.");
}

}  // namespace

GgufMetadataWriter gguf_metadata(const ModelFiles& files, const GgufLayout& layout,
                                 int64_t file_type) {
  GgufMetadataWriter out;
  if (files.is_gguf()) {
    for (const GgufEntry& entry :
         split_gguf_metadata(files.gguf_file().metadata_bytes, files.origin())) {
      if (!is_about_storage(entry.key)) out.add_entry(entry.key, entry.bytes);
    }
  } else {
    const GgufFamily family = gguf_family(files);
    out.add_string("general.architecture", layout.architecture);
    out.add_string("general.type", "model");
    const std::filesystem::path path = std::filesystem::path(files.origin()).lexically_normal();
    out.add_string("general.name",
                   (path.filename().empty() ? path.parent_path() : path).filename().string());
    Section section(out, layout.architecture);
    switch (family.kind) {
      case GgufFamily::Kind::kGemma3:
        add_gemma3(files, section);
        break;
      case GgufFamily::Kind::kGemma4:
        add_gemma4(files, section);
        break;
      case GgufFamily::Kind::kQwen:
        add_qwen(files, layout.architecture, section);
        break;
    }
    add_sampling(files.generation(), out);
    add_gguf_tokenizer(files, layout.architecture, vocabulary_of(files), out);
  }
  out.add_integer("general.file_type", file_type);
  out.add_integer("general.quantization_version", kQuantisationVersion);
  return out;
}

}  // namespace braid

#include "convert/hf_folder.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "models/gemma3_config.h"
#include "tokenizer/gguf_token_type.h"

namespace braid {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

std::optional<int64_t> token_id(const GgufMetadata& metadata, const char* name) {
  return metadata.find_integer(std::string("tokenizer.ggml.") + name + "_token_id");
}

void add_ids(const ModelFiles& files, ordered_json& json) {
  if (const auto id = token_id(files.gguf(), "bos")) json["bos_token_id"] = *id;
  const std::vector<int32_t>& stops = files.generation().stop_ids;
  if (stops.size() == 1) json["eos_token_id"] = stops.front();
  if (stops.size() > 1) json["eos_token_id"] = stops;
  if (const auto id = token_id(files.gguf(), "padding")) json["pad_token_id"] = *id;
}

ordered_json rope_json(const RopeConfig& rope) {
  ordered_json json = {{"rope_theta", rope.theta}, {"rope_type", "default"}};
  if (rope.type == RopeConfig::Type::kLinear) {
    json["rope_type"] = "linear";
    json["factor"] = rope.factor;
  }
  return json;
}

std::string config_text(const ModelFiles& files) {
  const Gemma3Config config = Gemma3Config::from_gguf(files.gguf(), files.weights());
  std::vector<std::string> types;
  for (const bool sliding : config.sliding) {
    types.emplace_back(sliding ? "sliding_attention" : "full_attention");
  }
  const double scale = config.attention_scale;
  // As numbers of this size are written: 1e-06, not 9.9999999747524e-07.
  const double norm_epsilon = std::stod(fmt::format("{}", config.rms_norm_eps));
  ordered_json json = {{"architectures", {"Gemma3ForCausalLM"}},
                       {"model_type", "gemma3_text"},
                       {"dtype", "bfloat16"},
                       {"vocab_size", config.vocab_size},
                       {"hidden_size", config.hidden_size},
                       {"intermediate_size", config.mlp_width},
                       {"num_hidden_layers", config.sliding.size()},
                       {"layer_types", types},
                       {"num_attention_heads", config.num_heads},
                       {"num_key_value_heads", config.num_kv_heads},
                       {"head_dim", config.head_dim},
                       {"query_pre_attn_scalar", std::llround(1 / (scale * scale))},
                       {"attention_bias", false},
                       {"attention_dropout", 0.0},
                       {"sliding_window", config.sliding_window},
                       {"max_position_embeddings", config.max_positions},
                       {"rope_parameters",
                        {{"sliding_attention", rope_json(config.sliding_rope)},
                         {"full_attention", rope_json(config.full_rope)}}},
                       {"hidden_activation", "gelu_pytorch_tanh"},
                       {"rms_norm_eps", norm_epsilon},
                       {"attn_logit_softcapping", nullptr},
                       {"final_logit_softcapping", nullptr},
                       {"tie_word_embeddings", config.tied_head},
                       {"use_cache", true}};
  if (config.final_logit_softcap) json["final_logit_softcapping"] = *config.final_logit_softcap;
  add_ids(files, json);
  return json.dump(2) + "\n";
}

std::string generation_text(const ModelFiles& files) {
  ordered_json json = ordered_json::object();
  add_ids(files, json);
  const GenerationDefaults& defaults = files.generation();
  if (defaults.temperature) json["temperature"] = *defaults.temperature;
  if (defaults.top_k) json["top_k"] = *defaults.top_k;
  if (defaults.top_p) json["top_p"] = *defaults.top_p;
  return json.dump(2) + "\n";
}

// Of scored tokens, the best first, all pairs of tokens that make one up: what merges of a
// SentencePiece vocabulary are.
ordered_json merges_of(const std::vector<std::string>& tokens, const std::vector<double>& scores,
                       const std::vector<int64_t>& types) {
  std::unordered_map<std::string_view, size_t> ids;
  std::vector<size_t> order;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (types[id] != GgufTokenType::kNormal && types[id] != GgufTokenType::kUserDefined) continue;
    ids.emplace(tokens[id], id);
    order.push_back(id);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  ordered_json merges = ordered_json::array();
  for (const size_t id : order) {
    const std::string_view text = tokens[id];
    std::vector<std::pair<size_t, size_t>> pairs;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if ((static_cast<uint8_t>(text[cut]) & 0xC0) == 0x80) continue;  // within a character
      const auto left = ids.find(text.substr(0, cut)), right = ids.find(text.substr(cut));
      if (left != ids.end() && right != ids.end()) pairs.emplace_back(left->second, right->second);
    }
    std::sort(pairs.begin(), pairs.end());
    for (const auto& [left, right] : pairs) merges.push_back({tokens[left], tokens[right]});
  }
  return merges;
}

void add_tokenizer(const ModelFiles& files, std::map<std::string, std::string>& texts) {
  const GgufMetadata& metadata = files.gguf();
  const std::string model = metadata.find_string("tokenizer.ggml.model").value_or("none");
  if (model == "none" || model == "no_vocab") return;
  if (model != "llama") {
    metadata.fail("tokenizer.ggml.model",
                  fmt::format("'{}' cannot be written as tokenizer.json (llama can); quantise to "
                              "a GGUF file, which keeps it",
                              model));
  }
  const auto tokens = metadata.find_strings("tokenizer.ggml.tokens");
  const auto scores = metadata.find_numbers("tokenizer.ggml.scores");
  const auto types = metadata.find_integers("tokenizer.ggml.token_type");
  if (!tokens || !scores || !types || scores->size() != tokens->size() ||
      types->size() != tokens->size()) {
    metadata.fail("tokenizer.ggml.tokens", "tokens, scores and token_type must be there, one each");
  }
  ordered_json vocabulary = ordered_json::object(), added = ordered_json::array();
  // Past ordered_json's own emplace(), which compares with every key there is.
  std::vector<std::pair<const std::string, ordered_json>>& entries =
      vocabulary.get_ref<ordered_json::object_t&>();
  std::unordered_set<std::string_view> seen;
  std::string unknown;
  for (size_t id = 0; id < tokens->size(); ++id) {
    const std::string& text = (*tokens)[id];
    const int64_t type = (*types)[id];
    if (seen.insert(text).second) entries.emplace_back(text, id);
    if (type == GgufTokenType::kUnknown) unknown = text;
    if (type != GgufTokenType::kControl && type != GgufTokenType::kUnknown &&
        type != GgufTokenType::kUserDefined)
      continue;
    added.push_back({{"id", id},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type != GgufTokenType::kUserDefined}});
  }
  const ordered_json spaces = {{"String", " "}};
  ordered_json json = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", std::move(added)},
      {"normalizer", {{"type", "Replace"}, {"pattern", spaces}, {"content", kSpaceMark}}},
      {"pre_tokenizer",
       {{"type", "Split"},
        {"pattern", spaces},
        {"behavior", "MergedWithPrevious"},
        {"invert", false}}},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}}}}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", unknown.empty() ? ordered_json() : ordered_json(unknown)},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"ignore_merges", false},
        {"vocab", std::move(vocabulary)},
        {"merges", merges_of(*tokens, *scores, *types)}}}};
  if (metadata.find_boolean("tokenizer.ggml.add_space_prefix").value_or(true)) {
    json["normalizer"] = {
        {"type", "Sequence"},
        {"normalizers", {{{"type", "Prepend"}, {"prepend", kSpaceMark}}, json["normalizer"]}}};
  }
  texts["tokenizer.json"] = json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);

  ordered_json config = {
      {"add_bos_token", metadata.find_boolean("tokenizer.ggml.add_bos_token").value_or(true)},
      {"add_eos_token", false}};
  for (const auto& [key, name] : {std::pair{"bos", "bos_token"},
                                  {"eos", "eos_token"},
                                  {"padding", "pad_token"},
                                  {"unknown", "unk_token"}}) {
    const auto id = token_id(metadata, key);
    if (id && *id >= 0 && *id < static_cast<int64_t>(tokens->size())) {
      config[name] = (*tokens)[static_cast<size_t>(*id)];
    }
  }
  config["clean_up_tokenization_spaces"] = false;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  texts["tokenizer_config.json"] = config.dump(2) + "\n";
}

}  // namespace

std::map<std::string, std::string> hf_folder_texts(const ModelFiles& files) {
  if (files.model_type() != "gemma3") {
    throw Error(
        "{}: a GGUF file of architecture {} cannot be made a Hugging Face folder (gemma3 can); "
        "quantise to a GGUF file, -o OUT.gguf",
        files.origin(), files.model_type());
  }
  std::map<std::string, std::string> texts;
  texts["config.json"] = config_text(files);
  texts["generation_config.json"] = generation_text(files);
  add_tokenizer(files, texts);
  if (files.chat_template()) texts["chat_template.jinja"] = *files.chat_template();
  return texts;
}

std::string hf_tensor_name(const std::string& canonical) {
  return canonical == "lm_head.weight" ? canonical : "model." + canonical;
}

float hf_tensor_offset(const ModelFiles& files, const std::string& canonical) {
  return files.model_type() == "gemma3" && canonical.ends_with("norm.weight") ? 1.0f : 0.0f;
}

}  // namespace braid

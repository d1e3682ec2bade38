#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/config_reader.h"
#include "checkpoint/gguf.h"
#include "checkpoint/weight_map.h"

namespace braid {

// Sampling defaults and stop ids that a model's files ask for.
struct GenerationDefaults {
  std::vector<int32_t> stop_ids;  // union of config.json, generation_config.json and GGUF metadata
  std::vector<int32_t> suppress_ids;
  std::optional<int32_t> bos_id;
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
  std::optional<bool> do_sample;
};

// Everything a model folder or GGUF file holds, opened and checked but not interpreted.
class ModelFiles {
 public:
  // `path`: a Hugging Face folder, a .gguf file (of a split set: its first), or config.json-only
  // folder when with_weights is false. Throws Error naming the file and what is wrong.
  static ModelFiles open(const std::filesystem::path& path, bool with_weights = true);

  const std::string& origin() const { return origin_; }
  bool is_gguf() const { return gguf_ != nullptr; }
  // Hugging Face folders: config.json.
  const ConfigReader& config() const { return *config_; }
  // GGUF files.
  const GgufMetadata& gguf() const { return gguf_->metadata; }
  // "gemma4_text" (config.json model_type) or "gemma4" (GGUF general.architecture).
  const std::string& model_type() const { return model_type_; }

  WeightMap& weights() { return weights_; }
  const GenerationDefaults& generation() const { return generation_; }
  // File contents, absent if the folder has no such file (GGUF: the template from the metadata).
  const std::optional<std::string>& tokenizer_json() const { return tokenizer_json_; }
  const std::optional<std::string>& tokenizer_config_json() const { return tokenizer_config_json_; }
  const std::optional<std::string>& chat_template() const { return chat_template_; }

 private:
  std::string origin_;
  std::string model_type_;
  std::shared_ptr<const ConfigReader> config_;
  std::shared_ptr<const GgufFile> gguf_;
  WeightMap weights_;
  GenerationDefaults generation_;
  std::optional<std::string> tokenizer_json_, tokenizer_config_json_, chat_template_;
};

}  // namespace braid

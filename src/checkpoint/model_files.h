#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "checkpoint/config_reader.h"
#include "checkpoint/generation_defaults.h"
#include "checkpoint/gguf.h"
#include "checkpoint/kv_cache_scheme.h"
#include "checkpoint/weight_map.h"

namespace braid {

// Files of a Hugging Face folder that are read beside the weights.
inline constexpr std::array kFolderTextFiles = {"config.json",         "generation_config.json",
                                                "tokenizer.json",      "tokenizer_config.json",
                                                "chat_template.jinja", "chat_template.json"};

// Everything a model folder or GGUF file holds, opened and checked but not interpreted.
class ModelFiles {
 public:
  // `path`: a Hugging Face folder, a .gguf file (of a split set: any part) or a folder that
  // pack_model() wrote from either. A folder needs config.json (packed from GGUF: metadata.gguf)
  // and, unless with_weights is false, weights; all else is optional.
  // Throws Error naming the file and what is wrong.
  static ModelFiles open(const std::filesystem::path& path, bool with_weights = true);

  const std::string& origin() const { return origin_; }
  bool is_gguf() const { return gguf_ != nullptr; }
  // Hugging Face folders: config.json.
  const ConfigReader& config() const { return *config_; }
  // Its text_config, or, in text-only checkpoints, config.json itself.
  const ConfigReader& text_config() const { return *text_config_; }
  // GGUF files.
  const GgufMetadata& gguf() const { return gguf_->metadata; }
  const GgufFile& gguf_file() const { return *gguf_; }
  // Whether the weights come from a pack (checkpoint/pack_file.h).
  bool is_packed() const { return packed_; }
  // Has the weights of a pack brought into memory, before they are needed page by page. Call while
  // weights() are those read.
  void read_ahead() const;
  // Of the text decoder: "gemma4_text" (model_type of text_config or config.json) or "gemma4" (GGUF
  // general.architecture).
  const std::string& model_type() const { return model_type_; }

  // Names as the files have them.
  WeightMap& weights() { return weights_; }
  const WeightMap& weights() const { return weights_; }
  const GenerationDefaults& generation() const { return generation_; }
  // GGUF files: none.
  const KvCacheScheme& kv_cache() const { return kv_cache_; }
  // File contents, absent if the folder has no such file (GGUF: the template from the metadata).
  const std::optional<std::string>& tokenizer_json() const { return tokenizer_json_; }
  const std::optional<std::string>& tokenizer_config_json() const { return tokenizer_config_json_; }
  const std::optional<std::string>& chat_template() const { return chat_template_; }

 private:
  void open_folder(const std::filesystem::path& folder, bool with_weights);
  void open_gguf(const std::filesystem::path& path, bool with_weights);
  void use_gguf(std::shared_ptr<const GgufFile> gguf);
  void open_pack(const std::filesystem::path& folder, bool with_weights);

  std::string origin_;
  std::string model_type_;
  bool packed_ = false;
  std::span<const std::byte> packed_bytes_;  // the weights' file
  std::shared_ptr<const ConfigReader> config_, text_config_;
  std::shared_ptr<const GgufFile> gguf_;
  WeightMap weights_;
  GenerationDefaults generation_;
  KvCacheScheme kv_cache_;
  std::optional<std::string> tokenizer_json_, tokenizer_config_json_, chat_template_;
};

}  // namespace braid

#include "models/registry.h"

#include <fmt/format.h>

#include "base/error.h"
#include "models/gemma3.h"
#include "models/gemma4.h"
#include "models/gemma4_assistant.h"
#include "models/gemma_names.h"
#include "models/qwen3_next.h"
#include "models/qwen_names.h"

namespace braid {
namespace {

void rename_gemma(ModelFiles& files) {
  files.is_gguf() ? use_canonical_gemma_gguf_names(files.weights())
                  : use_canonical_gemma_names(files.weights());
}

void rename_qwen(ModelFiles& files) {
  files.is_gguf()
      ? use_canonical_qwen_gguf_names(files.weights(), num_qwen_gguf_layers(files.gguf()))
      : use_canonical_qwen_names(files.weights());
}

// With the names canonical: reads the config, builds the model.
template <typename Family, typename Config>
std::unique_ptr<Model> load_gemma(ModelFiles& files) {
  if (files.is_gguf()) {
    return std::make_unique<Family>(Config::from_gguf(files.gguf(), files.weights()), files);
  }
  return std::make_unique<Family>(Config::from_json(files.config()), files);
}

std::unique_ptr<Model> load_qwen(ModelFiles& files) {
  if (files.is_gguf()) {
    return std::make_unique<Qwen3Next>(Qwen3NextConfig::from_gguf(files.gguf(), files.weights()),
                                       files);
  }
  return std::make_unique<Qwen3Next>(Qwen3NextConfig::from_json(files.config()), files);
}

// The type that names the whole checkpoint, not its text decoder.
std::string checkpoint_type(const ModelFiles& files) {
  if (files.is_gguf()) return files.model_type();
  return files.config().find_string("model_type").value_or(files.model_type());
}

struct Entry {
  const char* model_type;
  void (*rename)(ModelFiles& files);
  std::unique_ptr<Model> (*load)(ModelFiles& files);
};

constexpr Entry kFamilies[] = {
    {"gemma3", rename_gemma, load_gemma<Gemma3, Gemma3Config>},
    {"gemma3_text", rename_gemma, load_gemma<Gemma3, Gemma3Config>},
    {"gemma4", rename_gemma, load_gemma<Gemma4, Gemma4Config>},
    {"gemma4_text", rename_gemma, load_gemma<Gemma4, Gemma4Config>},
    {"gemma4_unified", rename_gemma, load_gemma<Gemma4, Gemma4Config>},
    {"gemma4_unified_text", rename_gemma, load_gemma<Gemma4, Gemma4Config>},
    {"qwen3_next", rename_qwen, load_qwen},
    {"qwen3next", rename_qwen, load_qwen},
    {"qwen3_5", rename_qwen, load_qwen},
    {"qwen3_5_text", rename_qwen, load_qwen},
    {"qwen3_5_moe", rename_qwen, load_qwen},
    {"qwen3_5_moe_text", rename_qwen, load_qwen},
    {"qwen35", rename_qwen, load_qwen},
    {"qwen35moe", rename_qwen, load_qwen},
};

const Entry& entry_of(const ModelFiles& files) {
  if (is_draft_model(files)) {
    throw Error("{} is a draft model; use it with --speculate assistant:PATH", files.origin());
  }
  for (const Entry& entry : kFamilies) {
    if (files.model_type() == entry.model_type) return entry;
  }
  throw Error("{}: model type '{}' is not supported (supported: {})", files.origin(),
              files.model_type(), fmt::join(supported_model_types(), ", "));
}

}  // namespace

std::unique_ptr<Model> load_model(ModelFiles& files) {
  use_canonical_names(files);
  std::unique_ptr<Model> model = entry_of(files).load(files);
  has_kv_scales(*model, files.origin());  // of all layers, or of none
  return model;
}

void use_canonical_names(ModelFiles& files) { entry_of(files).rename(files); }

bool is_draft_model(const ModelFiles& files) {
  const std::string type = checkpoint_type(files);
  return type == "gemma4_assistant" || type == "gemma4_unified_assistant" ||
         type == "gemma4-assistant";
}

std::unique_ptr<Gemma4Assistant> load_assistant(ModelFiles& files, const Model& backbone) {
  if (!is_draft_model(files)) {
    throw Error("{}: model type '{}' is no draft model (known: gemma4_assistant)", files.origin(),
                checkpoint_type(files));
  }
  if (files.is_gguf()) {
    use_canonical_gemma_gguf_names(files.weights());
    return std::make_unique<Gemma4Assistant>(
        Gemma4AssistantConfig::from_gguf(files.gguf(), files.weights()), files, backbone);
  }
  use_canonical_gemma_names(files.weights());
  return std::make_unique<Gemma4Assistant>(Gemma4AssistantConfig::from_json(files.config()), files,
                                           backbone);
}

std::vector<std::string> supported_model_types() {
  std::vector<std::string> types;
  for (const Entry& entry : kFamilies) types.emplace_back(entry.model_type);
  return types;
}

}  // namespace braid

#include "models/registry.h"

#include <fmt/format.h>

#include "base/error.h"
#include "models/gemma3.h"
#include "models/gemma4.h"
#include "models/gemma_names.h"
#include "models/qwen3_next.h"
#include "models/qwen_names.h"

namespace braid {
namespace {

// Renames the tensors to the family's canonical names, reads the config, builds the model.
template <typename Family, typename Config>
std::unique_ptr<Model> load_gemma(ModelFiles& files) {
  if (files.is_gguf()) {
    use_canonical_gemma_gguf_names(files.weights());
    return std::make_unique<Family>(Config::from_gguf(files.gguf(), files.weights()), files);
  }
  use_canonical_gemma_names(files.weights());
  return std::make_unique<Family>(Config::from_json(files.config()), files);
}

std::unique_ptr<Model> load_qwen(ModelFiles& files) {
  if (files.is_gguf()) {
    use_canonical_qwen_gguf_names(files.weights(), num_qwen_gguf_layers(files.gguf()));
    return std::make_unique<Qwen3Next>(Qwen3NextConfig::from_gguf(files.gguf(), files.weights()),
                                       files);
  }
  use_canonical_qwen_names(files.weights());
  return std::make_unique<Qwen3Next>(Qwen3NextConfig::from_json(files.config()), files);
}

struct Entry {
  const char* model_type;
  std::unique_ptr<Model> (*load)(ModelFiles& files);
};

constexpr Entry kFamilies[] = {
    {"gemma3", load_gemma<Gemma3, Gemma3Config>},
    {"gemma3_text", load_gemma<Gemma3, Gemma3Config>},
    {"gemma4", load_gemma<Gemma4, Gemma4Config>},
    {"gemma4_text", load_gemma<Gemma4, Gemma4Config>},
    {"gemma4_unified", load_gemma<Gemma4, Gemma4Config>},
    {"gemma4_unified_text", load_gemma<Gemma4, Gemma4Config>},
    {"qwen3_next", load_qwen},
    {"qwen3next", load_qwen},
    {"qwen3_5", load_qwen},
    {"qwen3_5_text", load_qwen},
    {"qwen3_5_moe", load_qwen},
    {"qwen3_5_moe_text", load_qwen},
    {"qwen35", load_qwen},
    {"qwen35moe", load_qwen},
};

}  // namespace

std::unique_ptr<Model> load_model(ModelFiles& files) {
  for (const Entry& entry : kFamilies) {
    if (files.model_type() == entry.model_type) return entry.load(files);
  }
  throw Error("{}: model type '{}' is not supported (supported: {})", files.origin(),
              files.model_type(), fmt::join(supported_model_types(), ", "));
}

std::vector<std::string> supported_model_types() {
  std::vector<std::string> types;
  for (const Entry& entry : kFamilies) types.emplace_back(entry.model_type);
  return types;
}

}  // namespace braid

#include "convert/gguf_family.h"

#include "base/error.h"
#include "models/gemma3_config.h"
#include "models/gemma4_config.h"
#include "models/qwen3_next_config.h"

namespace braid {

GgufFamily gguf_family(const ModelFiles& files) {
  using Kind = GgufFamily::Kind;
  const std::string& type = files.model_type();
  if (type.starts_with("gemma3")) {
    return {Kind::kGemma3, "gemma3", Gemma3Config::from_json(files.config()).tied_head};
  }
  if (type.starts_with("gemma4")) {
    return {Kind::kGemma4, "gemma4", Gemma4Config::from_json(files.config()).tied_head};
  }
  if (type.starts_with("qwen3_")) {
    const Qwen3NextConfig config = Qwen3NextConfig::from_json(files.config());
    const char* architecture = config.family == "qwen3_next"    ? "qwen3next"
                               : config.family == "qwen3_5_moe" ? "qwen35moe"
                                                                : "qwen35";
    return {Kind::kQwen, architecture, config.tied_head};
  }
  throw Error("{}: models of type '{}' cannot be written as GGUF", files.origin(), type);
}

}  // namespace braid

#include "engine/loaded_model.h"

#include <algorithm>

#include "base/error.h"
#include "engine/demo_models.h"
#include "engine/gguf_vocabulary.h"
#include "models/registry.h"

namespace braid {
namespace {

std::unique_ptr<Tokenizer> load_tokenizer(const ModelFiles& files) {
  if (files.is_gguf()) {
    return files.gguf().has("tokenizer.ggml.model") ? load_gguf_tokenizer(files.gguf()) : nullptr;
  }
  if (!files.tokenizer_json()) return nullptr;
  return make_tokenizer_from_json(*files.tokenizer_json(),
                                  files.tokenizer_config_json().value_or(""),
                                  files.origin() + "/tokenizer.json");
}

std::string token_text_or_empty(const Tokenizer* tokenizer, std::optional<TokenId> id) {
  return tokenizer != nullptr && id ? std::string(tokenizer->token_text(*id)) : std::string();
}

}  // namespace

LoadedModel LoadedModel::load(std::string_view model, const LoadOptions& options) {
  const std::filesystem::path path = resolve_model(model);
  LoadedModel loaded;
  loaded.origin_ = path.string();
  loaded.files_ = std::make_unique<ModelFiles>(ModelFiles::open(path, !options.dummy_weights));
  ModelFiles& files = *loaded.files_;
  if (options.dummy_weights) {
    const QuantFormat* format = find_quant_format(options.dummy_format);
    if (format == nullptr)
      throw UsageError("--dummy-format '{}': unknown format", options.dummy_format);
    files.weights() = WeightMap::dummy(options.dummy_seed, *format);
    files.weights().set_origin(loaded.origin_);
  }
  loaded.model_ = load_model(files);
  loaded.tokenizer_ = load_tokenizer(files);
  const Tokenizer* tokenizer = loaded.tokenizer_.get();
  if (files.chat_template()) {
    loaded.chat_template_ = std::make_unique<ChatTemplate>(
        *files.chat_template(), loaded.origin_ + ": chat template",
        token_text_or_empty(tokenizer, tokenizer ? tokenizer->bos_id() : std::nullopt),
        token_text_or_empty(tokenizer, tokenizer ? tokenizer->eos_id() : std::nullopt));
  }
  loaded.generation_ = files.generation();
  if (tokenizer != nullptr) {
    auto& stop_ids = loaded.generation_.stop_ids;
    if (const auto eos = tokenizer->eos_id();
        eos && std::find(stop_ids.begin(), stop_ids.end(), *eos) == stop_ids.end()) {
      stop_ids.push_back(*eos);
    }
  }
  return loaded;
}

const Tokenizer& LoadedModel::tokenizer() const {
  if (tokenizer_ == nullptr) {
    throw Error(
        "{}: there is no tokenizer.json; copy it from the model's original folder, or use a GGUF "
        "file",
        origin_);
  }
  return *tokenizer_;
}

const ChatTemplate& LoadedModel::chat_template() const {
  if (chat_template_ == nullptr) {
    throw Error(
        "{}: there is no chat template; add chat_template.jinja or give --chat-template FILE",
        origin_);
  }
  return *chat_template_;
}

}  // namespace braid

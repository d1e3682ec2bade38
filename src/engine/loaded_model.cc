#include "engine/loaded_model.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "engine/demo_models.h"
#include "engine/end_of_turn.h"
#include "engine/model_tokenizer.h"
#include "models/registry.h"
#include "quant/panels.h"
#include "tensor/cuda/device_memory.h"

namespace braid {

LoadedModel LoadedModel::load(std::string_view model, const LoadOptions& options) {
  const std::filesystem::path path = resolve_model(model);
  LoadedModel loaded;
  loaded.origin_ = options.origin.empty() ? path.string() : options.origin;
  loaded.files_ = std::make_unique<ModelFiles>(ModelFiles::open(path, !options.dummy_weights));
  ModelFiles& files = *loaded.files_;
  if (options.dummy_weights) {
    const auto formats = DummyFormats::find(options.dummy_format);
    if (!formats) {
      throw UsageError(
          "--weights '{}': unknown format; known are w4a16, w8a8, bf16, q4_0, q4_k, w4g128 and "
          "others (docs/quantised-weights.md)",
          options.dummy_format);
    }
    // Those for another device are made there.
    files.weights() = WeightMap::dummy(options.dummy_seed, *formats,
                                       /*fill=*/options.read_ahead && options.device.is_cpu());
    files.weights().set_origin(loaded.origin_);
  }
  files.weights().set_deferring(!options.read_ahead || !options.device.is_cpu());
  if (options.read_ahead && !options.dummy_weights && options.device.is_cpu()) files.read_ahead();
  loaded.model_ = load_model(files);
  loaded.device_ = options.device;
  if (!options.device.is_cpu()) {
    Placement counting = Placement::counting(options.device);
    loaded.model_->place(counting);
    loaded.placed_ = counting.counted();
  }
  if (!options.device.is_cpu() && options.read_ahead) {
    Placement placement(options.device, options.offloaded, loaded.placed_);
    loaded.model_->place(placement);
    loaded.model_->use_streamer(placement.streamer());
    if (spdlog::should_log(spdlog::level::debug)) {
      const cuda::DeviceRoom room = cuda::device_room(options.device.index);
      spdlog::debug("{}: {} bytes of parameters on the device, of which {} bytes are in use",
                    loaded.origin_, loaded.placed_.bytes, room.total_bytes - room.free_bytes);
    }
  }
  loaded.generation_ = files.generation();
  if (options.with_tokenizer) loaded.load_texts();
  return loaded;
}

// Vocabularies are often padded: such rows have weights, of any value, but no text.
void LoadedModel::suppress_rows_without_token() {
  std::vector<int32_t>& ids = generation_.suppress_ids;
  for (int32_t id = 0; id < model_->vocab_size(); ++id) {
    const bool has_token = id < tokenizer_->vocab_size() && !tokenizer_->token_text(id).empty();
    if (!has_token) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

void LoadedModel::load_texts() {
  tokenizer_ = load_tokenizer(*files_);
  if (tokenizer_ != nullptr) {
    add_stop_id(tokenizer_->eos_id());
    suppress_rows_without_token();
  }
  if (!files_->chat_template()) return;
  try {
    chat_template_ = std::make_unique<ChatTemplate>(
        make_chat_template(*files_->chat_template(), origin_ + ": chat template"));
  } catch (const Error& error) {
    chat_template_error_ = error.what();
    spdlog::debug("{}", chat_template_error_);
    return;
  }
  if (tokenizer_ != nullptr) add_stop_id(find_end_of_turn(*chat_template_, *tokenizer_));
}

void LoadedModel::add_stop_id(std::optional<TokenId> id) {
  auto& ids = generation_.stop_ids;
  if (!id || std::find(ids.begin(), ids.end(), *id) != ids.end()) return;
  ids.insert(std::upper_bound(ids.begin(), ids.end(), *id), *id);
}

const Tokenizer& LoadedModel::tokenizer() const {
  if (tokenizer_ == nullptr) fail_without_tokenizer(origin_);
  return *tokenizer_;
}

const ChatTemplate& LoadedModel::chat_template() const {
  if (!chat_template_error_.empty()) throw Error("{}", chat_template_error_);
  if (chat_template_ == nullptr) {
    throw Error(
        "{}: there is no chat template; add chat_template.jinja or give --chat-template FILE",
        origin_);
  }
  return *chat_template_;
}

ChatTemplate LoadedModel::make_chat_template(std::string_view source,
                                             const std::string& origin) const {
  const auto text = [&](std::optional<TokenId> id) {
    return id ? std::string(tokenizer_->token_text(*id)) : std::string();
  };
  if (tokenizer_ == nullptr) return ChatTemplate(source, origin, "", "");
  return ChatTemplate(source, origin, text(tokenizer_->bos_id()), text(tokenizer_->eos_id()));
}

}  // namespace braid

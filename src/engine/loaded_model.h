#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/model_files.h"
#include "models/model.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace braid {

struct LoadOptions {
  // false: token ids go in and out; tokenizer and chat template are not looked at.
  bool with_tokenizer = true;
  // Random weights of the config's shapes instead of a file's (--load-format dummy).
  bool dummy_weights = false;
  uint64_t dummy_seed = 0;
  std::string dummy_format = "bf16";  // or a recipe, as DummyFormats knows them
  // Where the parameters are to be, and the model so computes.
  Device device;
  // Layers whose matrices stay on the host (ascending) and are brought to the device for each step.
  std::vector<int64_t> offloaded;
  // false: weights are only described, not read, and stay where they are.
  bool read_ahead = true;
  // How the model is called in reports; empty: by its path.
  std::string origin;
};

// A model with what belongs to it. Immutable after loading; shared by engines.
class LoadedModel {
 public:
  // `model`: a folder, a .gguf file or "demo:NAME". Throws Error naming the file at fault.
  static LoadedModel load(std::string_view model, const LoadOptions& options = {});

  const std::string& origin() const { return origin_; }
  const Model& model() const { return *model_; }
  Device device() const { return device_; }
  // What the parameters take on a device other than the CPU, or would.
  const PlacementCount& placed() const { return placed_; }
  // The tokenizer; throws Error saying which file would provide it if the model came without one.
  // Its vocabulary may exceed the model's (image tokens, say).
  const Tokenizer& tokenizer() const;
  bool has_tokenizer() const { return tokenizer_ != nullptr; }
  // Likewise for the chat template; a template that braid cannot read is an error here, not while
  // loading.
  const ChatTemplate& chat_template() const;
  bool has_chat_template() const { return chat_template_ != nullptr; }
  // A template that replaces the model's. Throws Error naming `origin` and the line.
  ChatTemplate make_chat_template(std::string_view source, const std::string& origin) const;
  // Stop ids are the union of all the files, the tokenizer's end-of-text token and the token with
  // which the chat template ends an assistant's turn. Ids of the model's vocabulary that are no
  // token of the tokenizer's are suppressed.
  const GenerationDefaults& generation() const { return generation_; }
  // Parsed files, for `inspect`; weights are those bound to the model.
  const ModelFiles& files() const { return *files_; }

 private:
  void load_texts();
  void suppress_rows_without_token();
  void add_stop_id(std::optional<TokenId> id);

  std::string origin_;
  Device device_;
  PlacementCount placed_;
  std::unique_ptr<ModelFiles> files_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_template_;
  std::string chat_template_error_;  // why the template that is there cannot be used
  GenerationDefaults generation_;
};

}  // namespace braid

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/model_files.h"
#include "models/model.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace braid {

struct LoadOptions {
  // Random weights of the config's shapes instead of a file's (--load-format dummy).
  bool dummy_weights = false;
  uint64_t dummy_seed = 0;
  std::string dummy_format = "bf16";
};

// A model with what belongs to it. Immutable after loading; shared by engines.
class LoadedModel {
 public:
  // `model`: a folder, a .gguf file or "demo:NAME". Throws Error naming the file at fault.
  static LoadedModel load(std::string_view model, const LoadOptions& options = {});

  const std::string& origin() const { return origin_; }
  const Model& model() const { return *model_; }
  // The tokenizer; throws Error saying which file would provide it if the model came without one.
  const Tokenizer& tokenizer() const;
  bool has_tokenizer() const { return tokenizer_ != nullptr; }
  // Likewise for the chat template.
  const ChatTemplate& chat_template() const;
  bool has_chat_template() const { return chat_template_ != nullptr; }
  // Stop ids are the union of all the files and the tokenizer's end-of-text token.
  const GenerationDefaults& generation() const { return generation_; }
  // Parsed files, for `inspect`; weights are those bound to the model.
  const ModelFiles& files() const { return *files_; }

 private:
  std::string origin_;
  std::unique_ptr<ModelFiles> files_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_template_;
  GenerationDefaults generation_;
};

}  // namespace braid

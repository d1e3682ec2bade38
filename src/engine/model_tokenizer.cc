#include "engine/model_tokenizer.h"

#include "base/error.h"
#include "engine/gguf_vocabulary.h"

namespace braid {

std::unique_ptr<Tokenizer> load_tokenizer(const ModelFiles& files) {
  if (files.is_gguf()) {
    const std::string model = files.gguf().find_string("tokenizer.ggml.model").value_or("none");
    // Files without one may say so.
    if (model == "none" || model == "no_vocab") return nullptr;
    return load_gguf_tokenizer(files.gguf());
  }
  if (!files.tokenizer_json()) return nullptr;
  return make_tokenizer_from_json(*files.tokenizer_json(),
                                  files.tokenizer_config_json().value_or(""),
                                  files.origin() + "/tokenizer.json");
}

void fail_without_tokenizer(const std::string& origin) {
  throw Error(
      "{}: there is no tokenizer (tokenizer.json, or tokenizer.ggml.* in a GGUF file); copy "
      "tokenizer.json from the model's original folder, or give token ids",
      origin);
}

}  // namespace braid

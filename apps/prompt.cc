#include "apps/prompt.h"

#include "base/error.h"

namespace braid {

std::vector<int32_t> encode_prompt(const LoadedModel& loaded, std::string_view text) {
  const Tokenizer& tokenizer = loaded.tokenizer();
  return tokenizer.encode(text, {.add_bos = tokenizer.adds_bos()});
}

std::vector<int32_t> encode_chat(const LoadedModel& loaded, const ChatTemplate& chat,
                                 const ChatTemplateInputs& inputs) {
  const Tokenizer& tokenizer = loaded.tokenizer();
  // add_bos puts none in front of a BOS the template wrote, and supplies a missing one.
  return tokenizer.encode(chat.render(inputs), {.add_bos = tokenizer.adds_bos()});
}

}  // namespace braid

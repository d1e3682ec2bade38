#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/loaded_model.h"
#include "tokenizer/chat_template.h"

namespace braid {

// Token ids of a raw prompt, with exactly one BOS where the model wants one.
std::vector<int32_t> encode_prompt(const LoadedModel& loaded, std::string_view text);

// Token ids of a conversation rendered by `chat`; the template writes BOS itself.
std::vector<int32_t> encode_chat(const LoadedModel& loaded, const ChatTemplate& chat,
                                 const ChatTemplateInputs& inputs);

}  // namespace braid

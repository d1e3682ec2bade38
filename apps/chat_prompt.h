#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/loaded_model.h"
#include "tokenizer/chat_template.h"

namespace braid {

// How prompts become conversations, as the command line says it.
struct ChatSettings {
  const ChatTemplate* chat = nullptr;  // null: prompts are raw text
  std::string system;                  // empty: none
  std::optional<bool> thinking;        // unset: the template's own default
};

// Throws Error if the template drops or refuses the system message; warns if the thinking switch
// has no effect on it.
void check_chat_settings(const ChatSettings& settings);

// The beginning of a conversation: the system message, if there is one.
std::vector<ChatMessage> first_messages(const ChatSettings& settings);

// Token ids of a raw prompt, with exactly one BOS where the model wants one.
std::vector<int32_t> encode_prompt(const LoadedModel& loaded, std::string_view text);

// Token ids of a conversation rendered by `chat`, with exactly one BOS where the model wants one,
// whether or not the template writes it.
std::vector<int32_t> encode_chat(const LoadedModel& loaded, const ChatTemplate& chat,
                                 const ChatTemplateInputs& inputs);

// Token ids of one prompt: raw, or as the user's turn of a conversation.
std::vector<int32_t> encode_turn(const LoadedModel& loaded, const ChatSettings& settings,
                                 const std::string& text);

}  // namespace braid

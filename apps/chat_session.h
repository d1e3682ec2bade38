#pragma once

#include "apps/chat_prompt.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"

namespace braid {

struct ChatOptions {
  ChatSettings settings;  // with a template
  SamplingParams sampling;
  StopConditions stop;
  int64_t max_new_tokens = -1;
};

// A conversation on the terminal: each line is a user turn, the reply streams. Ctrl-C stops the
// reply and keeps what was said; /help lists the commands. Ends at /exit, the end of input, or
// Ctrl-C at the prompt.
void run_chat_session(Engine& engine, const LoadedModel& loaded, const ChatOptions& options);

}  // namespace braid

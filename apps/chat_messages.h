#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "tokenizer/chat_template.h"

namespace braid {

// The messages of a conversation in OpenAI's form: role, content (text, null, or a list of text
// parts), reasoning_content, name, tool_call_id, tool_calls. Throws Error naming the field that is
// unknown or of the wrong type.
std::vector<ChatMessage> parse_messages(const nlohmann::json& messages);

}  // namespace braid

#pragma once

#include <optional>

#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace braid {

// The token that a chat template writes right after the text of an assistant message: the one with
// which the model ends its turn ("<end_of_turn>", "<turn|>", "<|im_end|>"). Nothing if the template
// cannot render a plain exchange or writes ordinary text there.
std::optional<TokenId> find_end_of_turn(const ChatTemplate& chat, const Tokenizer& tokenizer);

}  // namespace braid

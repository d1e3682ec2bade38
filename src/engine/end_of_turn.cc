#include "engine/end_of_turn.h"

#include <string>

#include "base/error.h"

namespace braid {
namespace {

// Files exist whose turn markers are typed as ordinary user tokens; their form gives them away.
bool is_marker(const Tokenizer& tokenizer, TokenId id) {
  const std::string_view text = tokenizer.token_text(id);
  return tokenizer.is_special(id) ||
         (text.size() > 2 && text.starts_with('<') && text.ends_with('>'));
}

}  // namespace

std::optional<TokenId> find_end_of_turn(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  constexpr std::string_view kReply = "nightingale";
  std::string rendered;
  try {
    rendered = chat.render({.messages = {{.role = "user", .content = "Sing."},
                                         {.role = "assistant", .content = std::string(kReply)}},
                            .add_generation_prompt = false});
  } catch (const Error&) {
    return std::nullopt;
  }
  const size_t reply = rendered.rfind(kReply);
  if (reply == std::string::npos) return std::nullopt;
  const auto ids = tokenizer.encode(std::string_view(rendered).substr(reply + kReply.size()));
  if (ids.empty() || !is_marker(tokenizer, ids.front())) return std::nullopt;
  return ids.front();
}

}  // namespace braid

#include "apps/chat_prompt.h"

#include "base/error.h"
#include "base/log.h"

namespace braid {

void check_chat_settings(const ChatSettings& settings) {
  if (settings.chat == nullptr) return;
  const auto render = [&](const std::string& system, std::optional<bool> thinking) {
    ChatTemplateInputs inputs;
    if (!system.empty()) inputs.messages.push_back({.role = "system", .content = system});
    inputs.messages.push_back({.role = "user", .content = "Sing."});
    inputs.enable_thinking = thinking;
    return settings.chat->render(inputs);
  };
  if (!settings.system.empty() &&
      render(settings.system, settings.thinking) == render("", settings.thinking)) {
    throw Error("{}: the template has no place for a system message; leave --system out",
                settings.chat->origin());
  }
  if (settings.thinking && render(settings.system, true) == render(settings.system, false)) {
    spdlog::warn("--thinking has no effect: {} does not look at enable_thinking",
                 settings.chat->origin());
  }
}

std::vector<ChatMessage> first_messages(const ChatSettings& settings) {
  if (settings.system.empty()) return {};
  return {{.role = "system", .content = settings.system}};
}

std::vector<int32_t> encode_prompt(const LoadedModel& loaded, std::string_view text) {
  const Tokenizer& tokenizer = loaded.tokenizer();
  return tokenizer.encode(text, {.add_bos = tokenizer.adds_bos()});
}

std::vector<int32_t> encode_chat(const LoadedModel& loaded, const ChatTemplate& chat,
                                 const ChatTemplateInputs& inputs) {
  return encode_prompt(loaded, chat.render(inputs));
}

std::vector<int32_t> encode_turn(const LoadedModel& loaded, const ChatSettings& settings,
                                 const std::string& text) {
  if (settings.chat == nullptr) return encode_prompt(loaded, text);
  std::vector<ChatMessage> messages = first_messages(settings);
  messages.push_back({.role = "user", .content = text});
  return encode_chat(loaded, *settings.chat,
                     {.messages = std::move(messages), .enable_thinking = settings.thinking});
}

}  // namespace braid

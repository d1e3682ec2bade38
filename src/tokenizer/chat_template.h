#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments_json;  // a JSON object; other text reaches the template as a string
};

struct ChatMessage {
  std::string role;
  std::optional<std::string> content;  // unset: the template sees a message without content
  std::string reasoning;               // thought of an assistant message; empty: none
  std::vector<ToolCall> tool_calls;
  std::string tool_call_id;  // of a tool result; empty: none
  std::string name;          // empty: none
};

struct ChatTemplateInputs {
  std::vector<ChatMessage> messages;
  std::vector<std::string> tools_json;  // each an OpenAI tool object
  bool add_generation_prompt = true;
  std::optional<bool> enable_thinking;  // unset: the template's own default
  std::string extra_json;               // further variables, a JSON object; may be empty
};

namespace jinja {
struct Program;
}

// A model's chat template: Jinja as Hugging Face transformers runs it (docs: tests/data/chat).
// Immutable; one object may be used by many threads.
class ChatTemplate {
 public:
  // Parses the template. `origin` names it in messages. Throws Error "origin:line: ..." naming what
  // is unsupported or wrong. An empty token is not defined for the template.
  ChatTemplate(std::string_view source, const std::string& origin, std::string bos_token,
               std::string eos_token);

  // The prompt for a conversation. Throws Error "origin:line: ..." with the message of
  // raise_exception() or of the failure, and for JSON that does not parse.
  std::string render(const ChatTemplateInputs& inputs) const;

  // The same with exactly the variables of a JSON object.
  std::string render_json(std::string_view variables_json) const;

  const std::string& origin() const { return origin_; }

 private:
  std::string origin_;
  std::string bos_token_, eos_token_;
  std::shared_ptr<const jinja::Program> program_;
};

}  // namespace braid

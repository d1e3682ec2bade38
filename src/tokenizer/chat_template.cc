#include "tokenizer/chat_template.h"

#include "base/error.h"
#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/json.h"
#include "tokenizer/jinja/parser.h"
#include "tokenizer/jinja/text.h"

namespace braid {
namespace {

using jinja::Dict;
using jinja::Value;
using jinja::ValueList;

Value text_value(const std::string& text) { return Value::string(jinja::to_valid_utf8(text)); }

Value parse(std::string_view text, const std::string& what) {
  try {
    return jinja::parse_json(text);
  } catch (const jinja::Failure& failure) {
    throw Error("{}: {}", what, failure.what());
  }
}

// Arguments become a mapping where they are a JSON object, as templates expect; a model's own text
// may not be JSON, and then the template gets that text.
Value arguments_value(const std::string& text) {
  if (text.empty()) return Value::dict(Dict());
  try {
    Value value = jinja::parse_json(text);
    if (value.is_dict()) return value;
  } catch (const jinja::Failure&) {
  }
  return text_value(text);
}

Value tool_call_value(const ToolCall& call) {
  Dict function;
  function.set("name", text_value(call.name));
  function.set("arguments", arguments_value(call.arguments_json));
  Dict result;
  if (!call.id.empty()) result.set("id", text_value(call.id));
  result.set("type", Value::string("function"));
  result.set("function", Value::dict(std::move(function)));
  return Value::dict(std::move(result));
}

Value message_value(const ChatMessage& message) {
  Dict result;
  result.set("role", text_value(message.role));
  if (message.content) result.set("content", text_value(*message.content));
  if (!message.reasoning.empty()) {
    // Templates know the thought under different names.
    for (const char* name : {"reasoning", "reasoning_content", "thinking"}) {
      result.set(name, text_value(message.reasoning));
    }
  }
  if (!message.tool_calls.empty()) {
    ValueList calls;
    for (const ToolCall& call : message.tool_calls) calls.push_back(tool_call_value(call));
    result.set("tool_calls", Value::list(std::move(calls)));
  }
  if (!message.tool_call_id.empty()) result.set("tool_call_id", text_value(message.tool_call_id));
  if (!message.name.empty()) result.set("name", text_value(message.name));
  return Value::dict(std::move(result));
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, const std::string& origin,
                           std::string bos_token, std::string eos_token)
    : origin_(origin),
      bos_token_(std::move(bos_token)),
      eos_token_(std::move(eos_token)),
      program_(jinja::parse_template(source, origin)) {}

std::string ChatTemplate::render(const ChatTemplateInputs& inputs) const {
  Dict variables;
  if (!bos_token_.empty()) variables.set("bos_token", text_value(bos_token_));
  if (!eos_token_.empty()) variables.set("eos_token", text_value(eos_token_));
  ValueList messages;
  for (const ChatMessage& message : inputs.messages) messages.push_back(message_value(message));
  variables.set("messages", Value::list(std::move(messages)));
  ValueList tools;
  for (size_t i = 0; i < inputs.tools_json.size(); ++i) {
    tools.push_back(parse(inputs.tools_json[i], fmt::format("{}: tool {}", origin_, i)));
  }
  variables.set("tools", inputs.tools_json.empty() ? Value::none() : Value::list(std::move(tools)));
  variables.set("documents", Value::none());
  variables.set("add_generation_prompt", Value::boolean(inputs.add_generation_prompt));
  if (inputs.enable_thinking) {
    variables.set("enable_thinking", Value::boolean(*inputs.enable_thinking));
  }
  if (!inputs.extra_json.empty()) {
    const Value extra = parse(inputs.extra_json, origin_ + ": template variables");
    if (!extra.is_dict()) throw Error("{}: template variables must be a JSON object", origin_);
    for (const auto& [name, value] : extra.as_dict().entries()) variables.set(name, value);
  }
  return jinja::render(*program_, variables);
}

std::string ChatTemplate::render_json(std::string_view variables_json) const {
  const Value variables = parse(variables_json, origin_ + ": template variables");
  if (!variables.is_dict()) throw Error("{}: template variables must be a JSON object", origin_);
  return jinja::render(*program_, variables.as_dict());
}

}  // namespace braid

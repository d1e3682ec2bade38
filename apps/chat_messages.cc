#include "apps/chat_messages.h"

#include "apps/json_fields.h"
#include "apps/strict_json.h"
#include "base/error.h"

namespace braid {
namespace {

using nlohmann::json;

std::string parse_content(const json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw Error("\"content\": expected a string or a list of text parts");
  std::string text;
  for (const json& item : content) {
    const JsonFields part(item, "\"content\"");
    if (!part.has("type") || part.string("type") != "text" || !part.has("text")) {
      throw Error(
          "\"content\": only parts of the form {{\"type\": \"text\", \"text\": ...}} are read");
    }
    part.allow_only({"type", "text"});
    text += part.string("text");
  }
  return text;
}

ToolCall parse_tool_call(const json& item) {
  const JsonFields fields(item, "\"tool_calls\"");
  fields.allow_only({"id", "type", "index", "function"});
  if (!fields.has("function")) throw Error("\"tool_calls\": a call has no function");
  const JsonFields function(fields.at("function"), "\"function\"");
  function.allow_only({"name", "arguments"});
  if (!function.has("name")) throw Error("\"function\": a call has no name");
  ToolCall call;
  call.name = function.string("name");
  if (fields.has("id")) call.id = fields.string("id");
  if (function.has("arguments")) {
    const json& arguments = function.at("arguments");
    call.arguments_json =
        arguments.is_string() ? arguments.get<std::string>() : dump_json(arguments);
  }
  return call;
}

ChatMessage parse_message(const json& item) {
  const JsonFields fields(item, "\"messages\"");
  fields.allow_only({"role", "content", "reasoning_content", "name", "tool_call_id", "tool_calls"});
  if (!fields.has("role")) throw Error("\"messages\": a message has no role");
  ChatMessage message;
  message.role = fields.string("role");
  if (fields.has("content")) message.content = parse_content(fields.at("content"));
  if (fields.has("reasoning_content")) message.reasoning = fields.string("reasoning_content");
  if (fields.has("name")) message.name = fields.string("name");
  if (fields.has("tool_call_id")) message.tool_call_id = fields.string("tool_call_id");
  if (fields.has("tool_calls")) {
    for (const json& call : fields.list("tool_calls")) {
      message.tool_calls.push_back(parse_tool_call(call));
    }
  }
  return message;
}

}  // namespace

std::vector<ChatMessage> parse_messages(const json& messages) {
  if (!messages.is_array() || messages.empty()) {
    throw Error("\"messages\": expected a list of messages, not empty");
  }
  std::vector<ChatMessage> parsed;
  for (const json& message : messages) parsed.push_back(parse_message(message));
  return parsed;
}

}  // namespace braid

#include "tokenizer/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"

namespace braid {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

const std::string kData = std::string(BRAID_TEST_DATA) + "/chat/";

std::string read(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The golden conversations are in OpenAI's form; this is what the server makes of them.
ChatMessage message_of(const ordered_json& json) {
  ChatMessage message;
  message.role = json.at("role");
  if (json.contains("content")) message.content = json["content"].get<std::string>();
  message.reasoning = json.value("reasoning", "");
  message.tool_call_id = json.value("tool_call_id", "");
  message.name = json.value("name", "");
  for (const ordered_json& call : json.value("tool_calls", ordered_json::array())) {
    const ordered_json& arguments = call["function"]["arguments"];
    message.tool_calls.push_back(
        {call.value("id", ""), call["function"]["name"],
         arguments.is_string() ? arguments.get<std::string>() : arguments.dump()});
  }
  return message;
}

ChatTemplateInputs inputs_of(const ordered_json& conversation, const ordered_json& when) {
  ChatTemplateInputs inputs;
  for (const ordered_json& message : conversation["messages"]) {
    inputs.messages.push_back(message_of(message));
  }
  for (const ordered_json& tool : conversation["tools"]) inputs.tools_json.push_back(tool.dump());
  inputs.add_generation_prompt = when[0];
  if (!when[1].is_null()) inputs.enable_thinking = when[1].get<bool>();
  return inputs;
}

std::string error_of(const std::string& source, const ChatTemplateInputs& inputs) {
  try {
    ChatTemplate(source, "t.jinja", "<bos>", "<eos>").render(inputs);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ChatTemplate, RendersConversationsAsJinja2Does) {
  const ordered_json goldens = ordered_json::parse(read(kData + "conversations.json"));
  ASSERT_GT(goldens["cases"].size(), 100u);
  size_t rendered = 0;
  for (const ordered_json& golden : goldens["cases"]) {
    const std::string name = golden["template"];
    const ChatTemplate chat(read(kData + "templates/" + name), name, "<bos>", "<eos>");
    for (const ordered_json& when : golden["when"]) {
      const std::string where =
          fmt::format("{} {} {}", name, golden["conversation"].dump(), when.dump());
      const ChatTemplateInputs inputs =
          inputs_of(goldens["conversations"][golden["conversation"].get<std::string>()], when);
      if (golden.contains("error")) {
        EXPECT_THROW(chat.render(inputs), Error) << where;
      } else {
        EXPECT_EQ(chat.render(inputs), golden["text"].get<std::string>()) << where;
      }
      ++rendered;
    }
  }
  EXPECT_GT(rendered, 500u);
}

TEST(ChatTemplate, SnippetsAnswerAsJinja2Does) {
  const ordered_json goldens = ordered_json::parse(read(kData + "snippets.json"));
  ASSERT_GT(goldens["cases"].size(), 500u);
  const std::string variables = goldens["variables"].dump();
  for (const ordered_json& golden : goldens["cases"]) {
    const std::string source = golden["source"];
    std::string text;
    std::string error;
    try {
      text = ChatTemplate(source, "snippet", "", "").render_json(variables);
    } catch (const Error& failure) {
      error = failure.what();
    }
    if (golden.contains("unsupported")) {
      EXPECT_THAT(error, HasSubstr(golden["unsupported"].get<std::string>())) << source;
    } else if (golden.contains("error")) {
      EXPECT_NE(error, "") << source << "\ngave " << text << "\nbut jinja2: " << golden["error"];
    } else {
      EXPECT_EQ(error, "") << source;
      EXPECT_EQ(text, golden["text"].get<std::string>()) << source;
    }
  }
}

TEST(ChatTemplate, WritesTheBeginTokenOnce) {
  for (const char* name : {"turns.jinja", "channels.jinja"}) {
    const ChatTemplate chat(read(kData + "templates/" + name), name, "<bos>", "<eos>");
    ChatTemplateInputs inputs;
    inputs.messages.push_back({.role = "user", .content = "Hi"});
    const std::string text = chat.render(inputs);
    EXPECT_EQ(text.find("<bos>"), 0u);
    EXPECT_EQ(text.rfind("<bos>"), 0u);
  }
}

TEST(ChatTemplate, ErrorsNameOriginLineAndReason) {
  ChatTemplateInputs inputs;
  inputs.messages.push_back({.role = "user", .content = "Hi"});
  EXPECT_EQ(error_of("a\n{{ raise_exception('Roles must alternate') }}", inputs),
            "t.jinja:2: Roles must alternate");
  EXPECT_EQ(error_of("\n\n{% include 'x' %}", inputs), "t.jinja:3: unsupported tag 'include'");
  EXPECT_EQ(error_of("{{ missing.field }}", inputs), "t.jinja:1: 'missing' is undefined");
  EXPECT_THAT(error_of("{{ messages[0].content.nosuch() }}", inputs), HasSubstr("nosuch"));
  EXPECT_THAT(error_of("{% macro m(x) %}\n{{ x.y.z }}\n{% endmacro %}\n\n{{ m({}) }}", inputs),
              HasSubstr("t.jinja:2: "));
  EXPECT_THAT(error_of("\xff", inputs), HasSubstr("UTF-8"));
  inputs.tools_json.push_back("{\"a\": ");
  EXPECT_THAT(error_of("x", inputs), HasSubstr("t.jinja: tool 0: invalid JSON"));
}

TEST(ChatTemplate, ExtraVariablesMustBeAnObjectAndWinOverDefaults) {
  const ChatTemplate chat("{{ a }}{{ enable_thinking }}", "t", "", "");
  ChatTemplateInputs inputs;
  inputs.enable_thinking = true;
  inputs.extra_json = R"({"a": 1, "enable_thinking": false})";
  EXPECT_EQ(chat.render(inputs), "1False");
  inputs.extra_json = "[1]";
  EXPECT_THROW(chat.render(inputs), Error);
}

TEST(ChatTemplate, AbsentInputsAreUndefined) {
  const ChatTemplate chat(
      "{{ bos_token is defined }}{{ enable_thinking is defined }}{{ tools is none }}"
      "{{ messages[0].content is defined }}{{ messages[0].tool_calls is defined }}",
      "t", "", "");
  ChatTemplateInputs inputs;
  inputs.messages.push_back({.role = "assistant"});
  EXPECT_EQ(chat.render(inputs), "FalseFalseTrueFalseFalse");
}

TEST(ChatTemplate, IllFormedTextIsReplaced) {
  const ChatTemplate chat("{{ messages[0].content }}", "t", "", "");
  ChatTemplateInputs inputs;
  inputs.messages.push_back({.role = "user", .content = "a\xff\xc3(b"});
  EXPECT_EQ(chat.render(inputs), "a\uFFFD\uFFFD(b");
}

}  // namespace
}  // namespace braid
